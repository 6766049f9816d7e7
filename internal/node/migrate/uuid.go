package migrate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// A migration moves one domain, identified by libvirt's UUID or, where its process is in its
// launcher pod, by the UID of the source's. The source's agent writes the
// UUID to the status before the target's agent offers to take the guest. An admission policy
// lets it be written once. Connections, messages and the domain's XML must have the same
// UUID.

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// uuidOf returns what the status says of the source's instance.
func uuidOf(i grace.Instance) string { return strings.TrimPrefix(i.UUID, hypervisor.LauncherPrefix) }

// isOther reports whether the target has another guest than the one that is sent: another
// domain of libvirt's, or one of another launcher pod.
func isOther(state *kubevirt.MigrationState, i grace.Instance) bool {
	if hypervisor.InLauncher(i) {
		return uuidOf(i) != state.TargetPodUID
	}
	return state.DomainUUID != "" && i.UUID != "" && i.UUID != state.DomainUUID
}

// canonicalUUID reports whether this is a UUID as libvirt writes it.
func canonicalUUID(text string) bool { return uuidPattern.MatchString(text) }

// stateUUID writes the UUID of the guest to the status before the migration begins.
func (s *side) stateUUID(ctx context.Context, m *Migration) {
	switch m.Status.Phase {
	case kubevirt.MigrationScheduled, kubevirt.MigrationPreparingTarget, kubevirt.MigrationTargetReady:
	default:
		return
	}
	x := s.sending
	if uuid := uuidOf(x.instance); migration.StateOf(m).DomainUUID == "" && x.process != nil && canonicalUUID(uuid) {
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{DomainUUID: uuid})
	}
}

// replaced returns why the guest cannot be sent if it is another domain than the status says,
// otherwise "".
func (s *side) replaced(m *Migration) string {
	agreed, is := migration.StateOf(m).DomainUUID, uuidOf(s.sending.instance)
	if agreed == "" || is == "" || agreed == is {
		return ""
	}
	return fmt.Sprintf("domain %s has UUID %s now; %s was to be moved", s.domain, is, agreed)
}

// startTicks is the precision of a process's start time.
const startTicks = 20 * time.Millisecond

// removeStranger ends a QEMU that libvirt started for this migration's relay connection and
// that is not the guest: the source made libvirt accept another domain. A domain that was
// started before or after the connection is somebody else's.
func (s *side) removeStranger(i grace.Instance) {
	s.mu.Lock()
	from, to, open := s.relayedAt, s.relayEndedAt, s.receiving
	s.mu.Unlock()
	if from.IsZero() || i.PID == 0 || hypervisor.InLauncher(i) {
		return
	}
	age := process.Age(i.Start)
	if age > time.Since(from)+startTicks || !open && age < time.Since(to)-startTicks {
		return
	}
	p, err := s.node.cfg.Open(i.PID, i.Start)
	if errors.Is(err, process.ErrGone) {
		return
	}
	if err == nil {
		s.log.Error("ending a domain that came through the migration's connection and is not the guest", "uuid", i.UUID, "pid", i.PID)
		err = errors.Join(p.Signal(unix.SIGKILL), p.Close())
	}
	if err != nil {
		s.log.Error("cannot end a domain that is not the guest; trying again", "uuid", i.UUID, "pid", i.PID, "err", err)
	}
}

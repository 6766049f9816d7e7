package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Statuses of a guest in QEMU's words.
const (
	inMigrate     = "inmigrate"      // QEMU is empty, or its guest is arriving
	finishMigrate = "finish-migrate" // stopped, to be sent whole
	postMigrate   = "postmigrate"
)

// maxBandwidth is in bytes a second; libvirt sets it where there is no limit.
const maxBandwidth = math.MaxInt64 >> 20 << 20

// answer is what one connection to the monitor has brought.
type answer struct {
	request grace.MoveRequest
	err     error // of the request, or of the look
	machine signals.Machine
	stopped bool // the guest was told to stop
	seen    bool // sight counts
	sight
}

// sight is what QEMU says of its guest and of the last migration (query-migrate).
type sight struct {
	guest    string
	Status   string `json:"status"`
	Error    string `json:"error-desc"`
	Downtime uint64 `json:"downtime"` // milliseconds
	Memory   struct {
		Total     uint64 `json:"total"`
		Remaining uint64 `json:"remaining"`
	} `json:"ram"`
	Blocked []string `json:"blocked-reasons"`
}

// over reports whether the last migration has ended, and its guest has stayed.
func (s sight) over() bool {
	return (s.Status == "failed" || s.Status == "cancelled") && s.guest != finishMigrate
}

// halted reports whether the guest would run if it was told to, and is at no other QEMU.
// QEMU has another word for a paused guest that it has nearly sent.
func (s sight) halted() bool { return s.guest == "paused" || s.guest == postMigrate && s.over() }

// word returns what the guest does.
func (s sight) word() string {
	if s.halted() {
		return signals.GuestPaused
	}
	return s.guest
}

// sending returns the state of a guest that is being sent.
func (s sight) sending(paused bool) (state signals.MoveState, reason string) {
	switch {
	case s.Status == "completed" && s.guest == postMigrate:
		return signals.StateCompleted, ""
	case s.Status == "cancelled" && s.over():
		return signals.StateCancelled, ""
	case s.Status == "failed" && s.over():
		return signals.StateFailed, s.Error
	case s.Status == "" || s.Status == "none" || s.Status == "completed" && s.guest != finishMigrate:
		return signals.StateFailed, fmt.Sprintf("QEMU sends no guest: it is %.40q", s.guest)
	case paused:
		return signals.StatePaused, ""
	case s.Status == "setup":
		return signals.StateSetup, ""
	default:
		return signals.StateActive, ""
	}
}

// able returns AbleOK, or why the guest cannot be sent.
func (a answer) able() string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case len(a.Blocked) > 0:
		return "QEMU: " + a.Blocked[0]
	default:
		return signals.AbleOK
	}
}

// do carries the work out.
func (w work) do(ctx context.Context, monitor string) answer {
	a := answer{request: w.request}
	if w.socket != nil {
		defer w.socket.Close() // QEMU has its own descriptor
	}
	q, err := dialQMP(ctx, monitor, moveDeadline())
	if err != nil {
		a.err = err
		return a
	}
	defer q.close()
	if a.guest, a.err = q.status(); a.err != nil {
		return a
	}
	a.err = w.carryOut(q, &a)
	err = q.look(&a.sight)
	if err == nil && (w.resume || a.stopped) && a.over() && a.halted() {
		if _, err = q.do("cont"); err == nil {
			err = q.look(&a.sight)
		}
		if errors.Is(err, errRefused) {
			a.Error, err = strings.TrimPrefix(a.Error+"; the guest is not resumed: "+err.Error(), "; "), nil
		}
	}
	a.seen = err == nil
	if w.request.Do == "" || w.request.Do == grace.MoveLook {
		a.err = cmp.Or(a.err, err)
	}
	return a
}

func (w work) carryOut(q *qmp, a *answer) (err error) {
	switch w.request.Do {
	case grace.MoveLook:
		a.machine, err = q.machine()
	case grace.MoveIncoming:
		if a.guest != inMigrate {
			return fmt.Errorf("QEMU does not wait for a guest: it is %.40q", a.guest)
		}
		err = q.give(w.socket, "migrate-incoming")
	case grace.MoveMigrate:
		if err = q.prepare(w.request); err == nil {
			err = q.give(w.socket, "migrate")
		}
	case grace.MovePause:
		if a.guest == "running" {
			a.stopped = true
			_, err = q.do("stop")
		}
	case grace.MoveCancel:
		_, err = q.do("migrate_cancel")
	case grace.MoveCont:
		if a.guest == inMigrate { // QEMU would start it as soon as it has arrived
			return errors.New("the guest has not arrived")
		}
		_, err = q.do("cont")
	default: // a look
	}
	return err
}

// look asks how the last migration and the guest are, in this order: what runs when a
// migration is over was not stopped by it.
func (q *qmp) look(s *sight) error {
	var now sight
	if err := q.ask(&now, "query-migrate", nil); err != nil {
		return err
	}
	guest, err := q.guest()
	if err != nil {
		return err
	}
	now.guest = guest
	*s = now
	return nil
}

// machine asks what QEMU emulates, and whether it can migrate at all.
func (q *qmp) machine() (m signals.Machine, err error) {
	if _, err := q.do("query-migrate-capabilities"); err != nil {
		return m, err
	}
	var kvm struct {
		Enabled bool `json:"enabled"`
	}
	var cpus []struct {
		Path string `json:"qom-path"`
	}
	err = cmp.Or(q.ask(&m.Type, "qom-get", property("/machine")), q.ask(&kvm, "query-kvm", nil), q.ask(&cpus, "query-cpus-fast", nil))
	if err != nil {
		return signals.Machine{}, err
	}
	if len(cpus) == 0 {
		return signals.Machine{}, errors.New("QEMU has no CPU")
	}
	if err := q.ask(&m.CPU, "qom-get", property(cpus[0].Path)); err != nil {
		return signals.Machine{}, err
	}
	if m.Features, err = q.features(cpus[0].Path); err != nil {
		return signals.Machine{}, err
	}
	m.Type, m.Accelerator = strings.TrimSuffix(m.Type, "-machine"), "tcg"
	if kvm.Enabled {
		m.Accelerator = "kvm"
	}
	m.CPU = strings.TrimSuffix(m.CPU, "-cpu") // max-x86_64-cpu, host-arm-cpu
	if i := strings.LastIndexByte(m.CPU, '-'); i > 0 {
		m.CPU = m.CPU[:i]
	}
	return m, nil
}

// features returns a digest of the features that a CPU shows its guest. It is "" where QEMU has no
// such list, as of ARM.
func (q *qmp) features(cpu string) (string, error) {
	var words []struct {
		Leaf     uint32 `json:"cpuid-input-eax"`
		Subleaf  uint32 `json:"cpuid-input-ecx"`
		Register string `json:"cpuid-register"`
		Features uint64 `json:"features"`
	}
	err := q.ask(&words, "qom-get", map[string]string{"path": cpu, "property": "feature-words"})
	if errors.Is(err, errRefused) {
		return "", nil
	}
	digest := fnv.New64a()
	for _, w := range words {
		if w.Features != 0 { // another QEMU may list more words
			_, _ = fmt.Fprintln(digest, w.Leaf, w.Subleaf, w.Register, w.Features) // a hash takes all
		}
	}
	return fmt.Sprintf("%016x", digest.Sum64()), err
}

func property(path string) map[string]string {
	return map[string]string{"path": path, "property": "type"}
}

// prepare sets what a migration is to be like.
func (q *qmp) prepare(r grace.MoveRequest) error {
	bandwidth := min(r.Bandwidth, maxBandwidth>>20) << 20
	if bandwidth == 0 {
		bandwidth = maxBandwidth
	}
	capability := map[string]any{"capability": "auto-converge", "state": r.AutoConverge}
	if err := q.ask(nil, "migrate-set-capabilities", map[string]any{"capabilities": []any{capability}}); err != nil {
		return err
	}
	return q.ask(nil, "migrate-set-parameters", map[string]any{"max-bandwidth": bandwidth})
}

// give hands the agent's socket to QEMU, which forgets it at the end of this connection
// unless the command takes it.
func (q *qmp) give(socket *os.File, command string) error {
	const name = "vmgrace"
	if _, err := q.run("getfd", map[string]string{"fdname": name}, unix.UnixRights(int(socket.Fd()))); err != nil {
		return err
	}
	return q.ask(nil, command, map[string]string{"uri": "fd:" + name})
}

// ask runs a command and decodes its answer, unless into is nil.
func (q *qmp) ask(into any, command string, arguments any) error {
	text, err := q.run(command, arguments, nil)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return q.failed(command, err)
	}
	return nil
}

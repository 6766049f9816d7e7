package migrate

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const (
	// leftPrefix begins the file name of the record that a guest has left this node. The
	// migration's UID follows.
	leftPrefix = "left-"
	// recordTimeout bounds an access to a disk that may hang.
	recordTimeout = 2 * time.Second
	// maxLeft bounds what is read of such a record: the migration's namespace and name.
	maxLeft = 512
)

// explainExit finds out whether QEMU has ended because the guest has left, or the guest ran
// on here. It returns false while that depends on the result of libvirt's call. Without any
// evidence the guest counts as one that ran on: the copy at the target may be stale.
func (s *side) explainExit(ctx context.Context, last hypervisor.Stay) bool {
	x := s.sending
	if x.exitExplained {
		return true
	}
	switch {
	case x.ranOn:
	case last == hypervisor.StayLeft, last == hypervisor.StayNotResumed, s.departed(ctx):
	case !x.called():
		x.ranOn = true
	case closed(x.returned):
		x.ranOn = x.err != nil
	default:
		return false
	}
	x.exitExplained = true
	return true
}

// departed reports whether this agent or the hypervisor has recorded that the guest has left.
func (s *side) departed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	file := s.leftFile()
	if durable.Within(ctx, file, func() error { _, err := os.Stat(file); return err }) == nil {
		return true
	}
	left, err := s.kind().Left(ctx, s.domain, s.sending.instance)
	if err != nil {
		s.log.Warn("cannot find out how QEMU ended", "err", err)
	}
	return left
}

// recordOpen reports whether the record of a guest that has left does not show that yet: the agent was
// killed before it did. It tells the guest's keeper again.
func (s *side) recordOpen(m *Migration, f migration.SourceFacts) bool {
	if f.Guest != migration.GuestGone || migration.StateOf(m).SourceState != kubevirt.SourceGone || m.Final() || f.Gone {
		return false
	}
	s.node.cfg.VMs.Moved(s.domain, s.sending.instance.UUID)
	p := s.node.cfg.VMs.Phase(s.domain)
	return p == grace.Running || p == grace.Held
}

func (s *side) leftFile() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return filepath.Join(s.node.cfg.SocketDir, leftPrefix+string(s.migration.UID))
}

// recordDeparture writes that the guest leaves, before its QEMU is ended here and before the
// peer gets the report: an agent that restarts then reports the same. If the disk fails, the
// migration continues without the record.
func (s *side) recordDeparture(ctx context.Context) {
	if s.departureRecorded {
		return
	}
	s.departureRecorded = true
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	dir, name := filepath.Split(s.leftFile())
	m, _ := s.snapshot()
	text := []byte(m.Namespace + "/" + m.Name)
	err := durable.Within(ctx, "write that a guest has left", func() error {
		if err := durable.Real().MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return durable.Real().WriteFile(dir, name, text, 0o600)
	})
	if err != nil {
		s.log.Error("cannot write down that the guest has left; going on without", "err", err)
	}
}

// removeDeparture removes the record of the departure: the final state is in the API server.
func (s *side) removeDeparture() {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	file := s.leftFile()
	if err := durable.Within(ctx, file, func() error { return os.Remove(file) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot remove what was written down of a migration", "err", err)
	}
}

// removeDepartures removes the records of departures of migrations that were deleted while no
// agent ran. sides has the migrations that may need theirs.
func (n *Node) removeDepartures(ctx context.Context, sides map[string]bool) {
	files, err := readWithin(ctx, "read what was written down of migrations", func() ([]fs.DirEntry, error) { return os.ReadDir(n.cfg.SocketDir) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
		n.cfg.Log.Warn("cannot look for what was written down of former migrations", "err", err)
	}
	for _, f := range files {
		uid, left := strings.CutPrefix(f.Name(), leftPrefix)
		if !left || sides[uid] || ctx.Err() != nil {
			continue
		}
		if err := n.removeDeparture(ctx, uid); err != nil {
			n.cfg.Log.Warn("cannot remove what was written down of a migration", "uid", uid, "err", err)
		}
	}
}

// removeDeparture removes a record if the API server confirms that its migration is gone.
func (n *Node) removeDeparture(ctx context.Context, uid string) error {
	file := filepath.Join(n.cfg.SocketDir, leftPrefix+uid)
	text, err := readWithin(ctx, file, func() ([]byte, error) { return readStart(file, maxLeft) })
	if err != nil {
		return err
	}
	m := &Migration{}
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok {
		return nil // of an agent that wrote no names
	}
	m.Namespace, m.Name = namespace, name
	set(&m.UID, uid)
	asked, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if gone, err := n.cfg.Cluster.Gone(asked, m); err != nil || !gone {
		return err
	}
	n.cfg.Log.Info("removing what was written down of a former migration", "namespace", namespace, "migration", name)
	return within(ctx, file, func() error { return os.Remove(file) })
}

// set sets a string of a type that this package does not import.
func set[S ~string](to *S, text string) { *to = S(text) }

// readStart reads at most the first bytes of a file.
func readStart(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, most))
}

// within calls f with the time of a record.
func within(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return durable.Within(ctx, what, f)
}

// readWithin is within for a call with a result. A call that hangs is left behind, and so is its
// result.
func readWithin[T any](ctx context.Context, what string, f func() (T, error)) (got T, err error) {
	results := make(chan T, 1)
	err = within(ctx, what, func() error {
		result, err := f()
		results <- result
		return err
	})
	select {
	case got = <-results:
	default:
	}
	return got, err
}

// removeSockets removes the sockets of an agent that was killed.
func (n *Node) removeSockets() {
	files, err := os.ReadDir(n.cfg.SocketDir)
	if err != nil && !os.IsNotExist(err) {
		n.cfg.Log.Warn("cannot clear the directory for migrations", "err", err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), leftPrefix) || n.arrivedLives(f.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(n.cfg.SocketDir, f.Name())); err != nil {
			n.cfg.Log.Warn("cannot clear the directory for migrations", "err", err)
		}
	}
}

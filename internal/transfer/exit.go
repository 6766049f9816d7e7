package transfer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const (
	// leftPrefix begins the file name of the record that a guest has left this node. The
	// migration's UID follows.
	leftPrefix = "left-"
	// recordTimeout bounds an access to a disk that may hang.
	recordTimeout = 2 * time.Second
	// leftKept is how old a record of a departure without a migration must be to be removed.
	leftKept = 7 * 24 * time.Hour
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
	case last == hypervisor.StayLeft || s.departed(ctx):
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
	left, err := s.node.cfg.Hypervisor.Left(ctx, s.domain, s.sending.instance)
	if err != nil {
		s.log.Warn("cannot find out how QEMU ended", "err", err)
	}
	return left
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
	err := durable.Within(ctx, "write that a guest has left", func() error {
		if err := durable.Real().MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return durable.Real().WriteFile(dir, name, nil, 0o600)
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

// removeDepartures removes old records of departures whose migrations ended while no agent ran.
// sides has the migrations that may need theirs. The age keeps the records where the agent is
// shown no migrations because it has no right to list them.
func (n *Node) removeDepartures(ctx context.Context, sides map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	err := durable.Within(ctx, "remove what was written down of former migrations", func() error {
		files, err := os.ReadDir(n.cfg.SocketDir)
		for _, f := range files {
			uid, left := strings.CutPrefix(f.Name(), leftPrefix)
			info, infoErr := f.Info()
			if !left || sides[uid] || infoErr != nil || time.Since(info.ModTime()) < leftKept {
				continue
			}
			n.cfg.Log.Info("removing what was written down of a former migration", "migrationUID", uid)
			err = errors.Join(err, os.Remove(filepath.Join(n.cfg.SocketDir, f.Name())))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.cfg.Log.Warn("cannot remove what was written down of former migrations", "err", err)
	}
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

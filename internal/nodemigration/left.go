package nodemigration

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
	// leftPrefix begins the name of a file that says that a migration's guest has left
	// here; its UID follows.
	leftPrefix = "left-"
	// rememberTimeout bounds a disk that hangs.
	rememberTimeout = 2 * time.Second
)

// explain finds out what the end of QEMU means: whether the guest has left, or ran on
// here. It is false while only libvirt's answer will tell. Who does not know says that
// it ran on: what arrived elsewhere is stale then, or may be.
func (s *side) explain(ctx context.Context, last hypervisor.Stay) bool {
	x := s.sending
	if x.explained {
		return true
	}
	switch {
	case x.ranOn:
	case last == hypervisor.StayLeft || s.left(ctx):
	case !x.called():
		x.ranOn = true
	case closed(x.returned):
		x.ranOn = x.err != nil
	default:
		return false
	}
	x.explained = true
	return true
}

// left: the hypervisor says so, or this node's agent did.
func (s *side) left(ctx context.Context) bool {
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

// remember that the guest leaves, before its QEMU is ended here and before anybody
// hears of it: an agent that is started again says the same. On a disk that does not
// work the migration goes on without.
func (s *side) remember(ctx context.Context) {
	if s.remembered {
		return
	}
	s.remembered = true
	ctx, cancel := context.WithTimeout(ctx, rememberTimeout)
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

// forget it: the API server has this side's last word.
func (s *side) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), rememberTimeout)
	defer cancel()
	file := s.leftFile()
	if err := durable.Within(ctx, file, func() error { return os.Remove(file) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot remove what was written down of a migration", "err", err)
	}
}

// clear removes the sockets of an agent that was killed.
func (n *Node) clear() {
	files, err := os.ReadDir(n.cfg.SocketDir)
	if err != nil && !os.IsNotExist(err) {
		n.cfg.Log.Warn("cannot clear the directory for migrations", "err", err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), leftPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(n.cfg.SocketDir, f.Name())); err != nil {
			n.cfg.Log.Warn("cannot clear the directory for migrations", "err", err)
		}
	}
}

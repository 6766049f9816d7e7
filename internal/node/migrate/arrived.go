package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// arrivedName is the file name of the record that a guest has arrived paused. It names the
// guest's QEMU process, and counts while that process exists.
const arrivedName = "paused-%d-%d"

// recordPaused writes that a guest has arrived paused. If the disk fails, the guest counts
// as any other.
func (s *side) recordPaused(ctx context.Context, i grace.Instance) {
	if i.PID == 0 || s.pausedRecorded {
		return
	}
	s.pausedRecorded = true
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	dir := s.node.cfg.SocketDir
	err := durable.Within(ctx, "write that a guest has arrived paused", func() error {
		if err := durable.Real().MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return durable.Real().WriteFile(dir, fmt.Sprintf(arrivedName, i.PID, i.Start), nil, 0o600)
	})
	if err != nil {
		s.log.Error("cannot write down that a guest has arrived paused: do not move it before it has run", "err", err)
	}
}

// arrivedPaused reports whether the guest has arrived on this node paused. If the disk does
// not answer, it counts as one that has.
func (s *side) arrivedPaused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	i := s.sending.instance
	file := filepath.Join(s.node.cfg.SocketDir, fmt.Sprintf(arrivedName, i.PID, i.Start))
	err := durable.Within(ctx, file, func() error { _, err := os.Stat(file); return err })
	return !errors.Is(err, fs.ErrNotExist)
}

// arrivedLives reports whether a file records a guest that arrived paused and whose QEMU
// still exists.
func (n *Node) arrivedLives(name string) bool {
	var i grace.Instance
	if read, err := fmt.Sscanf(name, arrivedName, &i.PID, &i.Start); err != nil || read != 2 {
		return false
	}
	p, err := n.cfg.Open(i.PID, i.Start)
	if err == nil {
		_ = p.Close() // nothing was asked of it
	}
	return !errors.Is(err, process.ErrGone)
}

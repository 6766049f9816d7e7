package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/logind"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// nodeShutdownFile is in the state directory while the node shuts down. It is no VM's
	// record, and has another extension.
	nodeShutdownFile = "node-shutdown"
	maxNodeShutdown  = 4096
)

// delayShutdowns makes logind delay the node's shutdown. A dry run leaves its VMs alone,
// so it needs no delay.
func (n *node) delayShutdowns(ctx context.Context, c *agent.Config, boot string) {
	if n.DBusSocket == "" || n.DryRun {
		return
	}
	file := nodeShutdown{n.StateDir, boot}
	c.Inhibitor = n.inhibitor(n.log)
	c.SaveNodeShutdown = file.keep
	if n.records.read.Load() { // else the disk hangs
		c.NodeShutdown = file.recall(ctx, n.log)
	}
}

func (o *Options) inhibitor(log *slog.Logger) agent.Inhibitor {
	return &logind.Logind{Socket: o.DBusSocket, Log: log, Wanted: o.NodeShutdownTimeout, Root: nodeRoot}
}

// nodeShutdown keeps a shutdown of the node for the agents of this boot.
type nodeShutdown struct{ dir, boot string }

type diskNodeShutdown struct {
	BootID string     `json:"bootID"`
	Begin  grace.Mono `json:"beginMonotonicNanoseconds"`
	End    grace.Mono `json:"endMonotonicNanoseconds"`
}

func (s nodeShutdown) keep(n grace.NodeShutdownTime) error {
	if !n.UnderWay() {
		return durable.Real().Remove(s.dir, nodeShutdownFile)
	}
	text, err := json.Marshal(diskNodeShutdown{s.boot, n.Begin, n.End})
	if err != nil {
		return err
	}
	return durable.Real().WriteFile(s.dir, nodeShutdownFile, append(text, '\n'), 0o600)
}

// recall returns what an earlier agent of this boot has kept. It ignores invalid content:
// logind is asked anyway.
func (s nodeShutdown) recall(ctx context.Context, log *slog.Logger) grace.NodeShutdownTime {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	var kept grace.NodeShutdownTime
	err := durable.Within(ctx, "the disk", func() (err error) {
		kept, err = s.read()
		return err
	})
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			log.Warn("what an earlier agent heard of the node's shutdown cannot be used; logind is asked anew", "err", err)
		}
		return grace.NodeShutdownTime{}
	}
	if kept.Kept {
		log.Info("the node was shutting down when an earlier agent ended; logind is asked whether it still does", "end", time.Duration(kept.End-clock{}.Now()))
	}
	return kept
}

func (s nodeShutdown) read() (grace.NodeShutdownTime, error) {
	f, err := os.Open(filepath.Join(s.dir, nodeShutdownFile))
	if err != nil {
		return grace.NodeShutdownTime{}, err
	}
	defer f.Close()
	var d diskNodeShutdown
	if err := json.NewDecoder(io.LimitReader(f, maxNodeShutdown)).Decode(&d); err != nil {
		return grace.NodeShutdownTime{}, err
	}
	switch {
	// Monotonic times mean nothing in another boot. A soft-reboot is none.
	case d.BootID != s.boot, d.End <= (clock{}).Now() && d.End >= d.Begin:
		return grace.NodeShutdownTime{}, nil
	case d.Begin <= 0 || d.End < d.Begin || d.Begin > (clock{}).Now():
		return grace.NodeShutdownTime{}, fmt.Errorf("from %d to %d ns cannot be meant", d.Begin, d.End)
	default:
		return grace.NodeShutdownTime{Begin: d.Begin, End: d.End, Kept: true}, nil
	}
}

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// labelInterval is how often the Node is read: its label may have been removed, or the
	// Node made anew.
	labelInterval = 5 * time.Minute
	// labelGrace is how long an agent may be unable to take migrations until it removes the
	// label. One that starts has no certificate yet, and an update of all agents should not
	// change the Nodes.
	labelGrace   = time.Minute
	labelTimeout = 10 * time.Second
)

// NodeLabel keeps the label migration.TakesMigrationsLabel of this node's Node. It leaves
// the label there when the agent ends.
type NodeLabel struct {
	takes   func() bool                                   // nil: never
	set     func(ctx context.Context, value string) error // "": no label
	now     func() grace.Mono
	log     *slog.Logger
	changed chan struct{}
}

// NewNodeLabel shares the connection of a Source. takes returns whether this agent takes
// migrations now; it is nil if this agent never does.
func NewNodeLabel(s *Source, takes func() bool) *NodeLabel {
	return &NodeLabel{takes: takes, set: s.labelNode, now: s.now, log: s.log, changed: make(chan struct{}, 1)}
}

// Changed is called when the result of takes may have changed. It does not block.
func (l *NodeLabel) Changed() { wake(l.changed) }

// Run keeps the label until ctx ends. It is called after the Source's Open.
func (l *NodeLabel) Run(ctx context.Context) {
	took, unableSince := false, l.now()
	retry, logged := labelRetry(), ""
	for {
		takes := l.takes != nil && l.takes()
		if took && !takes {
			unableSince = l.now()
		}
		took = takes
		pause := unableSince.Add(labelGrace).Sub(l.now())
		if takes || l.takes == nil || pause <= 0 {
			value := ""
			if takes {
				value = migration.TakesMigrations
			}
			err := l.set(ctx, value)
			if pause = retry.Step(); err == nil {
				pause, retry, logged = wait.Jitter(labelInterval, 0.1), labelRetry(), ""
			} else if text := err.Error(); text != logged && ctx.Err() == nil {
				logged = text
				l.log.Warn("the label of this node's Node cannot be kept; trying again", "label", migration.TakesMigrationsLabel, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		case <-time.After(pause):
		}
	}
}

func labelRetry() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 20, Cap: labelInterval}
}

// labelNode sets the label, or removes it for "". It writes only what differs, and only to
// the Node that it has read.
func (s *Source) labelNode(ctx context.Context, value string) error {
	ctx, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	k := key{"", s.node}
	o, err := s.get(ctx, nodes(), k)
	if err != nil {
		return err
	}
	is, there := o.Labels[migration.TakesMigrationsLabel]
	if is == value && there == (value != "") {
		return nil
	}
	label := &value
	if value == "" {
		label = nil // null removes it
	}
	patch := map[string]any{"metadata": map[string]any{"uid": o.UID, "labels": map[string]any{migration.TakesMigrationsLabel: label}}}
	if err := s.patch(ctx, nodes(), k, "", types.MergePatchType, patch); err != nil {
		return fmt.Errorf("patch nodes: %w", err)
	}
	s.log.Info("the label of this node's Node was changed", "label", migration.TakesMigrationsLabel, "value", value)
	return nil
}

package taints

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	replacement "github.com/vmgrace/vmgrace/internal/rules/taints"
)

// removedTaints collects the taints that were removed from nodes since the last reconcile.
// It includes those that were added again since: the nodes' present state does not show
// their removal. It is safe for concurrent use.
type removedTaints struct {
	mu  sync.Mutex
	all map[replacement.TaintID]bool
}

// record records a change of a node; after is nil if the node was deleted.
func (g *removedTaints) record(before, after *corev1.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range before.Spec.Taints {
		stays := after != nil && slices.ContainsFunc(after.Spec.Taints, func(now corev1.Taint) bool { return now.MatchTaint(&t) })
		if stays {
			continue
		}
		if g.all == nil {
			g.all = map[replacement.TaintID]bool{}
		}
		g.all[replacement.TaintID{Node: before.Name, Key: t.Key, Effect: string(t.Effect)}] = true
	}
}

// take returns the removed taints and forgets them.
func (g *removedTaints) take() map[replacement.TaintID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.all
	g.all = nil
	return all
}

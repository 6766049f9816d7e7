package replace

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/pkg/replacement"
)

// gone are the taints that were taken from nodes since they were last asked for,
// also those that are there again: a look alone would not see that. It is safe for
// concurrent use.
type gone struct {
	mu  sync.Mutex
	all map[replacement.TaintID]bool
}

// note takes a change of a node; after is nil where the node itself went.
func (g *gone) note(before, after *corev1.Node) {
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

// take returns them, once.
func (g *gone) take() map[replacement.TaintID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.all
	g.all = nil
	return all
}

package estimate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

const (
	// named is how many VMs that cannot be moved an Event names.
	named = 5
	// longest is the length of an Event's note: the API server takes 1 KiB.
	longest = 1000
)

// tell emits an Event about a node that has got a NoExecute taint, unless the taint finds no VM.
func (r *reconciler) tell(l *look, t nodeTaint) {
	n := l.nodes[t.node]
	if n == nil || n.Node == nil {
		return
	}
	var found []evacuation.AtRisk
	for i := range n.vms {
		if !index.Tolerates(n.pods[i], &t.taint) {
			found = append(found, n.vms[i])
		}
	}
	if len(found) == 0 {
		return
	}
	e := l.EstimateOf(found, l.takes)
	kind := corev1.EventTypeNormal
	if e.InTime < len(found) {
		kind = corev1.EventTypeWarning
	}
	text := oneline.Cut(fmt.Sprintf("the node has got the taint %s:%s: %d of %d VMs are expected to be moved in time%s",
		t.taint.Key, t.taint.Effect, e.InTime, len(found), l.rest(&e, found)), longest)
	r.Log.Info("a node has got a NoExecute taint", "node", t.node, "what", text)
	r.Events.Eventf(n.Node, nil, kind, "NoExecuteTaint", "Estimate", "%s", text)
}

// rest says how many VMs are not moved in time, and names the first that cannot be moved.
func (l *look) rest(e *evacuation.Estimate, found []evacuation.AtRisk) string {
	text := ""
	if e.Late > 0 {
		text += fmt.Sprintf(", %d not (%s)", e.Late, l.pace(e))
	}
	if e.NotMovable() == 0 {
		return text
	}
	var stay []string
	for i := range found {
		if v := found[i].VMI; found[i].Stays(&l.Settings) != "" {
			stay = append(stay, v.Namespace+"/"+v.Name)
		}
	}
	slices.Sort(stay)
	more := ""
	if len(stay) > named {
		stay, more = stay[:named], ", ..."
	}
	return text + fmt.Sprintf(", %d cannot be moved (%s): %s%s", e.NotMovable(), e.Why(), strings.Join(stay, ", "), more)
}

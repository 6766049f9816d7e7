package migration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// A fenced node is one that an admin has declared dead: its guests do not run. Kubernetes has
// the taint for that (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown,
// non-graceful node shutdown); the annotation says it of one boot, for vmgrace alone. That a
// node is not Ready, that its Node object is missing, or that time has passed proves nothing.
const (
	FencedTaint      = "node.kubernetes.io/out-of-service"
	FencedAnnotation = "vmgrace.io/fenced"
)

// UndecidedAfter is how long one agent's report may wait for the other's until the migration
// counts as undecided. Only then a node that is Ready can be fenced: it may live, and its agent's
// report is better than an admin's word.
const UndecidedAfter = 30 * time.Second

// StillAfter is how long a migration that has begun may make no progress at all, without a report
// of either agent, until it counts as undecided.
const StillAfter = 5 * time.Minute

// NodeFacts is what the API server knows about a node of a migration.
type NodeFacts struct {
	// Gone means that there is no Node object. Lost means that there is none, or the node is
	// not Ready.
	Gone, Lost bool
	// Since is when the node stopped being Ready; zero if that is unknown.
	Since time.Time
	// Fenced is what declares the node dead, or "".
	Fenced string
}

// fenceSource reports whether the source's agent will not report any more, by the admin's word.
func (f Facts) fenceSource() bool {
	return begun(f.Migration) && !f.Migration.Final() && f.state().SourceState == "" && f.SourceNode.Fenced != "" &&
		(f.SourceNode.Lost || f.reportLate())
}

// FencedState is the state that is reported in place of the source's agent: SourceGone, so that a
// complete copy goes on; SourceRunning if there is no VM any more, so that nothing goes on.
func (f Facts) FencedState() (state, why string) {
	switch {
	case f.VMI == nil || !f.same():
		return kubevirt.SourceRunning, fmt.Sprintf("VirtualMachineInstance %q is gone", f.Migration.Spec.VMIName)
	case f.vmEnds() != "":
		return kubevirt.SourceRunning, f.vmEnds()
	}
	return kubevirt.SourceGone, ""
}

// fenceTarget is fenceSource for the target's agent. A guest that it has reported as running
// has moved.
func (f Facts) fenceTarget() bool {
	open := f.state().TargetState == "" || f.state().TargetState == kubevirt.TargetArrived
	return begun(f.Migration) && f.Migration.Status.Phase != kubevirt.MigrationSucceeded && f.adopted() && open && f.TargetNode.Fenced != "" &&
		(f.TargetNode.Lost || f.reportLate())
}

// undecided returns what a migration that has begun waits for and only a person may be able to
// bring about, since when, and what to do. It is "" while the agents work.
func (f Facts) undecided(a Action) string {
	if a != Wait || !begun(f.Migration) || !f.adopted() {
		return ""
	}
	what, since := f.silent()
	if since.IsZero() {
		return ""
	}
	if f.Said != "" && strings.HasSuffix(f.Said, what) {
		return f.Said // the same wait, seen by this controller or a former one
	}
	return fmt.Sprintf("migration %s waits since %s: %s", f.Migration.Name, since.UTC().Format(time.RFC3339), what)
}

// silent returns which agent has to report what, and since when it is awaited; zero if it is
// not overdue.
func (f Facts) silent() (what string, since time.Time) {
	s := f.state()
	switch {
	case f.in(kubevirt.MigrationFailed) && !f.removable():
		what = fmt.Sprintf("the agent of node %s is to remove what arrived there", s.TargetNode)
		return f.awaited(what, s.TargetNode, f.TargetNode)
	case f.Migration.Final():
		return "", time.Time{}
	case s.SourceState == "" && f.TargetNode.Lost && !f.SourceNode.Lost:
		what = fmt.Sprintf("the agent of node %s is to end it, which it may not be able to while node %s is lost", s.SourceNode, s.TargetNode)
		return f.awaited(what, s.TargetNode, f.TargetNode)
	case s.SourceState == "" && s.TargetState == kubevirt.TargetArrived:
		what = fmt.Sprintf("the agent of node %s is to report whether the guest still runs there; node %s has all of it, and loses it if node %s is rebooted before it is declared dead",
			s.SourceNode, s.TargetNode, s.SourceNode)
		return f.awaited(what, s.SourceNode, f.SourceNode)
	case s.SourceState == "":
		what = fmt.Sprintf("the agent of node %s is to report whether the guest still runs there", s.SourceNode)
		return f.awaited(what, s.SourceNode, f.SourceNode)
	case s.SourceState == kubevirt.SourceGone && s.TargetState != kubevirt.TargetRunning:
		what = fmt.Sprintf("the agent of node %s is to resume the guest", s.TargetNode)
		return f.awaited(what, s.TargetNode, f.TargetNode)
	}
	return "", time.Time{}
}

// awaited returns what is awaited of a node's agent, with what to do, and since when: since the
// node is lost, or since the migration stands still. It is zero if that is not overdue.
func (f Facts) awaited(what, name string, n NodeFacts) (text string, since time.Time) {
	text = what + advice(name, n)
	switch {
	case f.Said != "" && strings.HasSuffix(f.Said, text):
		return text, f.Now // the text has the time
	case n.Lost && !n.Since.IsZero():
		return text, n.Since
	case n.Lost, f.reportDue() <= 0:
		return text, f.reportedAt()
	}
	return text, time.Time{}
}

// reportLate reports whether one agent has reported, and the other one's report is overdue.
func (f Facts) reportLate() bool {
	return (f.state().SourceState != "" || f.state().TargetState != "") && f.reportDue() <= 0
}

// reportedAt returns when the migration last changed, or when it failed.
func (f Facts) reportedAt() time.Time {
	if end := f.state().EndTimestamp; f.Migration.Final() && end != nil {
		return end.Time
	}
	return f.Seen
}

func advice(name string, n NodeFacts) string {
	switch {
	case n.Gone:
		return fmt.Sprintf(" (there is no Node %s: bring it back; or, once it is certainly off, make the Node again and taint it: kubectl taint nodes %s %s=nodeshutdown:NoExecute)", name, name, FencedTaint)
	case n.Lost:
		return fmt.Sprintf(" (the node is not Ready: bring it back; or, once it is certainly off: kubectl taint nodes %s %s=nodeshutdown:NoExecute)", name, FencedTaint)
	}
	return " (look at that agent's log)"
}

// WithoutVM reports whether a migration that has begun is not over, although its VMI is not among
// those that are there, by UID: no VMI can say what it waits for.
func WithoutVM(m *kubevirt.VirtualMachineInstanceMigration, there map[string]bool) bool {
	return begun(m) && slices.Contains(m.Finalizers, Finalizer) && !there[StateOf(m).VMIUID]
}

// Undecided reports whether a text is that of this migration.
func Undecided(m *kubevirt.VirtualMachineInstanceMigration, text string) bool {
	return strings.HasPrefix(text, "migration "+m.Name+" waits since ")
}

// lostText is the failure's reason of a guest that a fenced node has taken with it.
func (f Facts) lostText() string {
	s := f.state()
	switch {
	case s.SourceFenced != "":
		return fmt.Sprintf("node %s was fenced (%s) before the guest had arrived", s.SourceNode, s.SourceFenced)
	case s.TargetFenced != "":
		return fmt.Sprintf("node %s was fenced (%s) after the guest had left node %s", s.TargetNode, s.TargetFenced, s.SourceNode)
	}
	return "QEMU of node " + s.SourceNode + " ended before the guest had arrived"
}

// spent reports whether a migration has left a pod without a guest, whatever its node does: it
// failed and no copy can be resumed, or it moved the guest away.
func spent(p *Pod, m *kubevirt.VirtualMachineInstanceMigration) bool {
	s := StateOf(m)
	switch m.Status.Phase {
	case kubevirt.MigrationFailed:
		stays := !begun(m) || s.SourceState == kubevirt.SourceRunning || s.TargetState == kubevirt.TargetAbsent
		return stays && p.Name == TargetPodName(m.Spec.VMIName, string(m.UID)) && (s.TargetPodUID == "" || s.TargetPodUID == p.UID)
	case kubevirt.MigrationSucceeded:
		return s.SourceState == kubevirt.SourceGone && s.SourcePodUID == p.UID
	default:
		return false
	}
}

// Spent reports whether a launcher pod that is being deleted certainly runs no guest, by one of
// its VM's migrations. On a node that is lost such a pod stays as long as its Node object.
func Spent(p *Pod, migrations []kubevirt.VirtualMachineInstanceMigration) bool {
	return p.Deleting && slices.ContainsFunc(migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool { return spent(p, &m) })
}

package migration

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// nodes is the state of the two nodes of a world, by "s" and "t".
type nodes struct {
	dead      map[string]bool      // with its agent, libvirt and QEMU
	lost      map[string]time.Time // not Ready, and since when
	fenced    map[string]bool      // by an admin
	fencedAt  time.Time            // when the target's agent learnt that the source is fenced
	ended     bool                 // the source's agent has learnt of it
	undecided string               // what the controller says last
}

func (n *nodes) facts(which string) NodeFacts {
	since, lost := n.lost[which]
	f := NodeFacts{Lost: lost, Since: since}
	if n.fenced[which] {
		f.Fenced = "taint " + FencedTaint
	}
	return f
}

// promiseBroken reports whether the source was fenced while it lives, and its agent could not
// act on that yet.
func (n *nodes) promiseBroken() bool { return n.fenced["s"] && !n.dead["s"] && !n.ended }

// fence writes the state of a fenced node's agent in its place.
func (w *world) fence(a Action) {
	w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) {
		if s := m.Status.MigrationState; a == FenceSource {
			s.SourceState, s.SourceFenced = kubevirt.SourceGone, "taint"
		} else {
			s.TargetState, s.TargetFenced = kubevirt.TargetAbsent, "taint"
		}
	})
}

func (w *world) fencedFor(m *kubevirt.VirtualMachineInstanceMigration) time.Duration {
	if StateOf(m).SourceFenced == "" || w.sourceMsg == kubevirt.SourceGone {
		return 0
	}
	if w.nodes.fencedAt.IsZero() || w.link && !w.nodes.dead["s"] {
		w.nodes.fencedAt = w.now
	}
	return w.now.Sub(w.nodes.fencedAt) + 1
}

// die takes a node away for good.
func (w *world) die(which string) {
	w.notef("node of %q dies, source %s, job %q, copy %s", which, w.source, w.job, w.copy)
	w.nodes.dead[which], w.nodes.lost[which] = true, w.now
	if which == "s" {
		w.source = GuestGone
	}
	w.cut()
	if which == "t" {
		w.copy, w.incoming, w.finishing = CopyNone, false, false
	}
	w.link = false
}

func newFencedWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := newWorld(t, seed)
	w.every = []int{4, 8, 16, 32}[seed%4]
	w.nodes = nodes{dead: map[string]bool{}, lost: map[string]time.Time{}, fenced: map[string]bool{}}
	for range 20 + w.r.IntN(150) {
		w.step()
	}
	return w
}

// settle lets all that lives act without faults, and reports whether the migration has ended.
func (w *world) settle() bool {
	w.calm, w.link = true, !w.nodes.dead["s"] && !w.nodes.dead["t"]
	for who := range w.api {
		w.api[who] = true
	}
	for n := range 1500 {
		if w.m.Final() && len(w.m.Finalizers) == 0 && n > 200 {
			return true
		}
		w.step()
	}
	return false
}

// Given a node that dies for good at any moment of a migration, the migration ends by itself,
// or names what is undecided and which command decides it. Once the node is fenced it ends: a
// complete copy runs, and an incomplete one is removed.
func TestWorldsWhoseNodesDie(t *testing.T) {
	resumed, waited := 0, 0
	for seed := range uint64(2000) {
		w := newFencedWorld(t, seed)
		which := []string{"s", "t"}[seed/4%2]
		complete := w.copy == CopyComplete
		w.die(which)
		if !w.settle() {
			waited++
			if text := w.nodes.undecided; !Undecided(w.m, text) || !strings.Contains(text, "kubectl taint nodes") {
				w.failf("it waits, and says %q: %+v", text, w.m.Status)
			}
			w.notef("it is fenced")
			w.nodes.fenced[which] = true
			if !w.settle() {
				w.failf("fenced, and no end: %+v, source %s, copy %s", w.m.Status, w.source, w.copy)
			}
			if w.nodes.undecided != "" {
				w.failf("it has ended, and says %q", w.nodes.undecided)
			}
		}
		switch {
		case which == "t" && w.copy != CopyNone, w.copy == CopyComplete, w.copy == CopyIncoming, w.source == GuestPaused:
			w.failf("left behind: source %s, copy %s", w.source, w.copy)
		case w.copy == CopyRunning && w.m.Status.Phase != kubevirt.MigrationSucceeded:
			w.failf("it runs at the target, and the status is %s", w.m.Status.Phase)
		case which == "t" && !w.killS && w.source == GuestGone && StateOf(w.m).SourceState == "":
			w.failf("the source's guest ended without a report")
		}
		if which == "s" && complete && w.copy == CopyRunning {
			resumed++
		}
	}
	t.Logf("%d waited for somebody, %d complete copies were resumed", waited, resumed)
	if resumed < 10 || waited < 50 {
		t.Errorf("the worlds do not show enough: %d waited, %d resumed", waited, resumed)
	}
}

// Given a source that is fenced although it lives, its agent ends its guest before anything else
// as soon as it learns of it. From then on one guest runs at most, and one does unless the copy
// was lost with it.
func TestWorldsWithAFalseFence(t *testing.T) {
	fenced, lost := 0, 0
	for seed := range uint64(2000) {
		w := newFencedWorld(t, seed)
		w.notef("the source is cut off and fenced, but lives")
		w.api["s"], w.link = w.r.IntN(2) == 0, false
		w.agentCut()
		w.nodes.lost["s"], w.nodes.fenced["s"] = w.now, true
		for range 100 {
			w.step()
		}
		w.notef("it is back")
		w.ranOn, w.targetMsg = false, "" // a new agent
		if !w.settle() {
			w.failf("no end: %+v, source %s, copy %s", w.m.Status, w.source, w.copy)
		}
		if StateOf(w.m).SourceFenced == "" {
			continue
		}
		fenced++
		switch gone := w.source == GuestGone; {
		case w.copy == CopyRunning && !gone:
			w.failf("two are left: %+v", w.m.Status)
		case w.copy != CopyRunning && gone && !w.killS && !w.killT:
			lost++ // its agent did not know that the copy was incomplete
		}
	}
	t.Logf("%d were fenced, %d lost their guest", fenced, lost)
	if fenced < 100 {
		t.Errorf("the worlds do not show enough: %d", fenced)
	}
}

// Given a migration without any fault, however long it takes, nobody is asked to act.
func TestAHealthyMigrationIsNeverUndecided(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(t, seed)
		w.calm = true
		for range 1500 {
			w.step()
			if w.nodes.undecided != "" {
				w.failf("it says %q", w.nodes.undecided)
			}
		}
		if w.m.Status.Phase != kubevirt.MigrationSucceeded {
			w.failf("it is %s", w.m.Status.Phase)
		}
	}
}

func TestFencing(t *testing.T) {
	const running, failed = kubevirt.MigrationRunning, kubevirt.MigrationFailed
	lost := NodeFacts{Lost: true, Since: noon.Add(-time.Minute)}
	fenced := NodeFacts{Lost: true, Since: noon.Add(-time.Minute), Fenced: "taint x"}
	lives := NodeFacts{Fenced: "taint x"}
	states := func(source, target string) func(*Facts) {
		return func(f *Facts) {
			s := f.Migration.Status.MigrationState
			s.SourceState, s.TargetState, s.StartTimestamp = source, target, &metav1.Time{Time: noon}
		}
	}
	for _, c := range []struct {
		name           string
		phase          kubevirt.MigrationPhase
		but            func(*Facts)
		source, target NodeFacts
		after          time.Duration
		action         Action
		undecided      string // part of what is said, "" if nothing is
	}{
		{"both nodes live", running, states("", ""), NodeFacts{}, NodeFacts{}, StillAfter - 1, Wait, ""},
		{"nothing has happened for long", running, states("", ""), NodeFacts{}, NodeFacts{}, StillAfter, Wait, "look at that agent's log"},
		{"the source is lost", running, states("", kubevirt.TargetArrived), lost, NodeFacts{}, 0, Wait, "kubectl taint nodes a node.kubernetes.io/out-of-service"},
		{"its Node object is gone", running, states("", kubevirt.TargetArrived), NodeFacts{Lost: true, Gone: true}, NodeFacts{}, 0, Wait, "make the Node again"},
		{"the source is fenced", running, states("", kubevirt.TargetArrived), fenced, NodeFacts{}, 0, FenceSource, ""},
		{"fenced before anything arrived", running, states("", ""), fenced, NodeFacts{}, 0, FenceSource, ""},
		{"fenced, but it lives and sends", running, states("", ""), lives, NodeFacts{}, StillAfter - 1, Wait, ""},
		{"fenced, it lives and is to report", running, states("", kubevirt.TargetArrived), lives, NodeFacts{}, UndecidedAfter - 1, Wait, ""},
		{"fenced, it lives and reports nothing", running, states("", kubevirt.TargetArrived), lives, NodeFacts{}, UndecidedAfter, FenceSource, ""},
		{"fenced, but it has reported", running, states(kubevirt.SourceRunning, kubevirt.TargetArrived), fenced, NodeFacts{}, 0, Fail, ""},
		{"aborted since its launcher was evicted, then fenced", running, func(f *Facts) {
			states("", kubevirt.TargetArrived)(f)
			f.Migration.Status.MigrationState.AbortRequested, f.Source.Deleting = true, true
		}, fenced, NodeFacts{}, 0, FenceSource, ""},
		{"not begun", kubevirt.MigrationTargetReady, nil, fenced, NodeFacts{}, 0, Wait, ""},
		{"the target is lost", running, states("", ""), NodeFacts{}, lost, 0, Wait, "while node b is lost"},
		{"the target is fenced", running, states("", ""), NodeFacts{}, fenced, 0, FenceTarget, ""},
		{"the guest left for a target that is fenced", running, states(kubevirt.SourceGone, kubevirt.TargetArrived), NodeFacts{}, fenced, 0, FenceTarget, ""},
		{"both are gone", running, states(kubevirt.SourceGone, kubevirt.TargetAbsent), fenced, fenced, 0, Fail, ""},
		{"the agent of the source is silent", running, states("", kubevirt.TargetArrived), NodeFacts{}, NodeFacts{}, UndecidedAfter, Wait, "look at that agent's log"},
		{"failed, target lost: its pod is left to Kubernetes", failed, states(kubevirt.SourceRunning, ""), NodeFacts{}, lost, 0, DropPod, ""},
		{"failed, target fenced", failed, states(kubevirt.SourceRunning, ""), NodeFacts{}, fenced, 0, DropPod, ""},
		{"failed, the target's agent is silent", failed, states(kubevirt.SourceRunning, ""), NodeFacts{}, NodeFacts{}, UndecidedAfter, DropPod, ""},
		{"failed, the target's agent is silent and fenced", failed, func(f *Facts) {
			states(kubevirt.SourceRunning, "")(f)
			f.Target = nil
		}, NodeFacts{}, lives, UndecidedAfter, FenceTarget, ""},
		{"failed, target fenced, its pod deleted", failed, func(f *Facts) {
			states(kubevirt.SourceRunning, "")(f)
			f.Target.Deleting = true
		}, NodeFacts{}, fenced, 0, FenceTarget, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := given(t, c.phase)
			if c.but != nil {
				c.but(&f)
			}
			f.SourceNode, f.TargetNode, f.Now = c.source, c.target, noon.Add(c.after)
			got := Next(f)
			if got.Action != c.action || !strings.Contains(got.Undecided, c.undecided) || c.undecided == "" && got.Undecided != "" {
				t.Errorf("%+v, want %s and %q", got, c.action, c.undecided)
			}
		})
	}
}

// A pod that is being deleted on a lost node stays as long as its Node object. It must not keep
// the VM from being moved elsewhere if it certainly runs no guest.
func TestSpent(t *testing.T) {
	m := newWorld(t, 0).m
	name := TargetPodName(m.Spec.VMIName, string(m.UID))
	begun := &metav1.Time{Time: noon}
	target, source := Pod{Name: name, UID: "t", Deleting: true}, Pod{Name: "src", UID: "s", Deleting: true}
	for what, c := range map[string]struct {
		pod   Pod
		phase kubevirt.MigrationPhase
		state kubevirt.MigrationState
		want  bool
	}{
		"failed before it began":            {target, kubevirt.MigrationFailed, kubevirt.MigrationState{}, true},
		"the guest stayed":                  {target, kubevirt.MigrationFailed, kubevirt.MigrationState{StartTimestamp: begun, SourceState: kubevirt.SourceRunning}, true},
		"what became of the copy is unsaid": {target, kubevirt.MigrationFailed, kubevirt.MigrationState{StartTimestamp: begun, SourceState: kubevirt.SourceGone}, false},
		"it runs":                           {target, kubevirt.MigrationRunning, kubevirt.MigrationState{StartTimestamp: begun}, false},
		"another pod of that name":          {target, kubevirt.MigrationFailed, kubevirt.MigrationState{TargetPodUID: "other"}, false},
		"not deleted":                       {Pod{Name: name, UID: "t"}, kubevirt.MigrationFailed, kubevirt.MigrationState{}, false},
		"moved away":                        {source, kubevirt.MigrationSucceeded, kubevirt.MigrationState{SourcePodUID: "s", SourceState: kubevirt.SourceGone}, true},
		"moved to":                          {target, kubevirt.MigrationSucceeded, kubevirt.MigrationState{SourcePodUID: "s", SourceState: kubevirt.SourceGone}, false},
		"the source of a failed one":        {source, kubevirt.MigrationFailed, kubevirt.MigrationState{SourcePodUID: "s"}, false},
	} {
		m.Status.Phase, m.Status.MigrationState = c.phase, &c.state
		if got := Spent(&c.pod, []kubevirt.VirtualMachineInstanceMigration{*m}); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

package migration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// ran notes that the guest ran on at the source after its copy was complete.
func (w *world) ran() {
	if w.copy == CopyComplete || w.finishing {
		w.ranSince = true
	}
}

// agentCut is the effect of an agent's end, or a broken link between the agents, on the
// connection by which libvirt sends.
func (w *world) agentCut() {
	if !w.native {
		w.cut()
	}
}

// cut ends the connection by which libvirt sends.
func (w *world) cut() {
	if !w.relay {
		return
	}
	w.relay, w.closed = false, true
	switch w.job {
	case "perform": // cancelled on both sides
		w.incoming = false
		if w.copy == CopyIncoming {
			w.copy = CopyNone
		}
	case "finish": // counts as failed at the source; the target's call goes on
	}
	if w.job != "" {
		w.job = ""
		w.ran()
	}
}

// libvirt advances by one step.
func (w *world) libvirt() {
	switch {
	case w.job == "perform" && w.relay:
		if w.r.IntN(4) == 0 {
			w.job, w.incoming, w.finishing = "finish", false, true
		}
	case w.finishing:
		w.finishing = false
		if w.copy != CopyIncoming {
			return
		}
		w.copy = CopyComplete
		if w.job == "" && w.source == GuestRuns {
			w.ranSince = true
		}
		if w.relay && w.job == "finish" { // the answer arrives
			w.job, w.relay, w.closed = "", false, true
			w.source = GuestGone
		}
	}
}

// fault makes something fail or happen.
func (w *world) fault() {
	switch n := w.r.IntN(26); n {
	case 0, 1:
		w.link = !w.link
		w.notef("link %v", w.link)
		if !w.link {
			w.agentCut()
		}
	case 2, 3, 4:
		who := []string{"c", "s", "t"}[n-2]
		w.api[who] = !w.api[who]
		w.notef("API of %s %v", who, w.api[who])
	case 5: // source agent dies: its relay with it
		w.notef("source agent restarts")
		w.agentCut()
		w.ranOn, w.targetMsg = false, ""
	case 6:
		w.notef("target agent restarts")
		w.agentCut()
		w.sourceMsg, w.queried = "", false
		w.closed = w.m.Status.Phase == kubevirt.MigrationRunning || w.m.Final() || StateOf(w.m).TargetState == kubevirt.TargetAbsent
	case 7: // source libvirtd
		w.notef("libvirtd of the source dies in %q", w.job)
		job := w.job
		w.cut()
		if job == "finish" && w.source == GuestRuns && !w.userPaused {
			w.source = GuestPaused
			w.ranSince = false
		}
	case 8: // target libvirtd: what is not complete is killed
		w.notef("libvirtd of the target dies, %s", w.copy)
		if w.copy == CopyIncoming {
			w.cut()
			w.copy, w.incoming, w.finishing = CopyNone, false, false
		}
	case 9:
		if w.r.IntN(4) == 0 && w.source != GuestGone {
			w.notef("QEMU of the source is killed")
			w.killS = true
			w.source = GuestGone
			w.cut()
		}
	case 10:
		if w.r.IntN(4) == 0 && w.copy != CopyNone {
			w.notef("QEMU of the target is killed, %s", w.copy)
			w.killT = true
			w.cut()
			w.copy, w.incoming, w.finishing = CopyNone, false, false
		}
	case 11:
		if w.r.IntN(3) == 0 && w.m.DeletionTimestamp == nil {
			w.notef("the migration is deleted")
			w.m.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.version++
		}
	case 12:
		if w.r.IntN(3) == 0 {
			w.notef("the launcher is signalled")
			w.ending = true
		}
	case 13:
		if w.pod != nil && w.r.IntN(3) == 0 {
			w.notef("the target pod ends")
			w.pod.Ended = true
		}
	case 16:
		w.notef("the launcher is deleted")
		w.deleted = true
	case 17: // no time is left, or the VMI is deleted, too
		if w.deleted {
			w.notef("the shutdown begins")
			w.ending = true
		}
	case 14, 15:
		if w.native {
			w.notef("the connection between the libvirts breaks in %q", w.job)
			w.cut()
		}
	}
}

// executes reports whether the guest's processors run at the source: not while
// libvirt hands it over.
func (w *world) executes() bool { return w.source == GuestRuns && w.job != "finish" && !w.userPaused }

// pausedRight reports whether one copy of a guest that its user has paused is left, on
// the node that the migration states.
func (w *world) pausedRight() bool {
	if w.m.Status.Phase == kubevirt.MigrationSucceeded {
		return w.copy == CopyComplete && w.source == GuestGone && w.vmi.Status.NodeName == "b"
	}
	return w.m.Status.Phase == kubevirt.MigrationFailed && w.copy == CopyNone && w.source == GuestRuns && w.vmi.Status.NodeName == "a"
}

func (w *world) step() {
	w.now = w.now.Add(time.Second)
	if !w.calm && w.r.IntN(w.every) == 0 {
		w.fault()
	}
	switch w.r.IntN(4) {
	case 0:
		w.controller()
	case 1:
		w.sourceAgent()
	case 2:
		w.targetAgent()
	case 3:
		w.libvirt()
	}
	if w.executes() && w.copy == CopyRunning && !w.nodes.promiseBroken() {
		w.failf("two run")
	}
}

// Whatever dies and whatever connection breaks, two guests never run. Once all
// connections are back one runs, unless its own QEMU was killed. The migration ends with
// the phase that matches.
func TestRandomWorlds(t *testing.T) {
	t.Run("through the agents", func(t *testing.T) { randomWorlds(t, false, false) })
	t.Run("native", func(t *testing.T) { randomWorlds(t, true, false) })
	t.Run("paused by its user", func(t *testing.T) { randomWorlds(t, false, true) })
	t.Run("native, paused by its user", func(t *testing.T) { randomWorlds(t, true, true) })
}

func randomWorlds(t *testing.T, native, paused bool) {
	t.Helper()
	ends := map[kubevirt.MigrationPhase]int{}
	undecided := 0
	for seed := range uint64(8000) {
		w := newWorld(t, seed)
		w.every, w.native = []int{2, 8, 16, 32}[seed%4], native
		w.userPaused = paused
		w.notef("seed %d", seed)
		for range 60 + w.r.IntN(200) {
			w.step()
		}
		if w.source != GuestRuns && w.copy == CopyComplete {
			undecided++
		}
		w.calm, w.link = true, true
		for who := range w.api {
			w.api[who] = true
		}
		w.notef("all is well again")
		for n := range 1500 {
			if w.m.Final() && len(w.m.Finalizers) == 0 && n > 200 {
				break
			}
			w.step()
		}
		ends[w.m.Status.Phase]++
		runs := w.executes() || w.copy == CopyRunning
		switch {
		case !w.m.Final():
			w.failf("no end: %s, source %s, copy %s, state %+v", w.m.Status.Phase, w.source, w.copy, w.m.Status.MigrationState)
		case paused && !w.killS && !w.killT && !w.pausedRight():
			w.failf("paused: source %s, copy %s, status %s", w.source, w.copy, w.m.Status.Phase)
		case paused:
		case !runs && !w.killS && !w.killT:
			w.failf("none runs: source %s, copy %s", w.source, w.copy)
		case w.copy == CopyRunning && (w.m.Status.Phase != kubevirt.MigrationSucceeded || w.vmi.Status.NodeName != "b"):
			w.failf("it moved, but the status is %s on %s", w.m.Status.Phase, w.vmi.Status.NodeName)
		case w.executes() && (w.m.Status.Phase != kubevirt.MigrationFailed || w.vmi.Status.NodeName != "a"):
			w.failf("it stayed, but the status is %s on %s", w.m.Status.Phase, w.vmi.Status.NodeName)
		case w.m.Status.Phase == kubevirt.MigrationFailed && (StateOf(w.m).FailureReason == "" || w.pod != nil):
			w.failf("failed: reason %q, pod %+v", StateOf(w.m).FailureReason, w.pod)
		case len(w.m.Finalizers) != 0 || w.vmi.Labels[kubevirt.MigrationTargetLabel] != "":
			w.failf("left behind: %v, %v", w.m.Finalizers, w.vmi.Labels)
		case w.copy == CopyComplete || w.copy == CopyIncoming || w.source == GuestPaused:
			w.failf("left behind: source %s, copy %s", w.source, w.copy)
		}
	}
	t.Logf("ends %v, of them undecided at the last fault %d", ends, undecided)
	if ends[kubevirt.MigrationSucceeded] < 500 || ends[kubevirt.MigrationFailed] < 500 || undecided < 20 {
		t.Errorf("the worlds do not show enough: %v, %d", ends, undecided)
	}
}

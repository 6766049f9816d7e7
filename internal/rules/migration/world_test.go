package migration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// world is one migration with all its participants, in virtual time: an API
// server, libvirt and QEMU on two nodes, the connection between them, and three
// actors that each know what they last received.
type world struct {
	t     *testing.T
	r     *rand.Rand
	log   strings.Builder
	now   time.Time
	calm  bool // no more faults
	every int  // steps between two faults, about

	m       *kubevirt.VirtualMachineInstanceMigration
	vmi     *kubevirt.VirtualMachineInstance
	version int
	pod     *Pod

	link bool // between the agents
	api  map[string]bool
	view map[string]*kubevirt.VirtualMachineInstanceMigration
	seen map[string]int // versions of the views

	// libvirt and QEMU
	source                 Guest
	job                    string // "", perform, finish: of the source
	copy                   Copy
	incoming, finishing    bool // jobs of the target's libvirt
	native                 bool // libvirt sends by itself
	relay                  bool // the connection by which it sends
	ranSince, killS, killT bool

	// what the agents remember until they die
	ranOn, closed        bool
	queried              bool
	sourceMsg, targetMsg string
	phaseSeen            kubevirt.MigrationPhase
	phaseAt              time.Time
	ending               bool // the launcher is shut down, its agent begins at once
	deleted              bool // its agent waits for the migration first
	userPaused           bool // and is to stay so, wherever it is

	nodes nodes
}

func (w *world) notef(format string, args ...any) { fmt.Fprintf(&w.log, format+"\n", args...) }

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\n%s", append(args, w.log.String())...)
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), link: true,
		api: map[string]bool{"c": true, "s": true, "t": true}, seen: map[string]int{}, version: 1,
		view: map[string]*kubevirt.VirtualMachineInstanceMigration{}, source: GuestRuns, copy: CopyNone}
	w.m = &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "n", UID: "1"}}
	w.m.Spec.VMIName = "vm"
	w.vmi = &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "n", UID: "2", Labels: map[string]string{}}}
	w.vmi.Status.NodeName, w.vmi.Status.Phase = "a", kubevirt.VMIRunning
	w.vmi.Labels[kubevirt.NodeNameLabel] = "a"
	return w
}

// look updates an actor's view, if the actor can and happens to read.
func (w *world) look(who string) *kubevirt.VirtualMachineInstanceMigration {
	if w.view[who] == nil || w.api[who] && (w.calm || w.r.IntN(3) > 0) {
		w.view[who], w.seen[who] = w.m.DeepCopy(), w.version
	}
	return w.view[who]
}

// write changes the object as the actor saw it, unless it has changed since.
func (w *world) write(who string, change func(*kubevirt.VirtualMachineInstanceMigration)) bool {
	if !w.api[who] || w.seen[who] != w.version {
		return false
	}
	if w.m.Status.MigrationState == nil {
		w.m.Status.MigrationState = &kubevirt.MigrationState{}
	}
	before := w.m.Status.Phase
	change(w.m)
	w.version++
	if p := w.m.Status.Phase; p != before {
		w.m.Status.PhaseTransitionTimestamps = w.m.Transitions(p, w.now)
	}
	w.view[who], w.seen[who] = w.m.DeepCopy(), w.version
	return true
}

func (w *world) controller() {
	m := w.look("c")
	if seen := m.Status.Phase + "/" + kubevirt.MigrationPhase(StateOf(m).SourceState+"/"+StateOf(m).TargetState); seen != w.phaseSeen {
		w.phaseSeen, w.phaseAt = seen, w.now
	}
	f := Facts{Migration: m, VMI: w.vmi, Source: &Pod{Name: "src", UID: "s", Node: "a", Runs: true, Deleting: w.ending || w.deleted, InTime: w.deleted},
		Target: w.pod, Launchers: 1, OtherNodes: 1, Turn: true, Kept: true, Seen: w.phaseAt, Now: w.now,
		SourceNode: w.nodes.facts("s"), TargetNode: w.nodes.facts("t")}
	step := Next(f)
	w.nodes.undecided = step.Undecided
	if step.Action != Wait && step.Action != Nothing {
		w.notef("controller: %+v", step)
	}
	phase := func(p kubevirt.MigrationPhase, reason string) {
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase = p
			if reason != "" {
				m.Status.MigrationState.FailureReason = reason
			}
		})
	}
	if !w.api["c"] {
		return
	}
	switch step.Action {
	case Adopt:
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) { m.Finalizers = []string{Finalizer} })
	case Begin:
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase, m.Status.MigrationState.SourceNode = kubevirt.MigrationScheduling, "a"
			m.Status.MigrationState.VMIUID, m.Status.MigrationState.SourcePodUID = "2", "s"
		})
	case MakePod:
		w.pod = &Pod{Name: "dst", UID: "t", Node: "b", Runs: true, Created: w.now}
	case Schedule:
		w.vmi.Labels[kubevirt.MigrationTargetLabel] = "b"
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase, m.Status.MigrationState.TargetNode = kubevirt.MigrationScheduled, "b"
			m.Status.MigrationState.TargetPod, m.Status.MigrationState.TargetPodUID = "dst", "t"
		})
	case Abort:
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.AbortRequested = true
			m.Status.MigrationState.FailureReason = step.Message
		})
	case Fail:
		phase(kubevirt.MigrationFailed, step.Message)
	case Move:
		w.vmi.Status.NodeName = "b"
		w.vmi.Labels[kubevirt.NodeNameLabel] = "b"
	case Succeed:
		phase(kubevirt.MigrationSucceeded, "")
	case Unlabel:
		delete(w.vmi.Labels, kubevirt.MigrationTargetLabel)
	case DropPod:
		w.pod = nil
	case Release:
		w.write("c", func(m *kubevirt.VirtualMachineInstanceMigration) { m.Finalizers = nil })
	case FenceSource, FenceTarget:
		w.fence(step.Action)
	case Nothing, Wait, Expand:
	}
}

const pauseAfter = time.Minute

func (w *world) sourceAgent() {
	if w.nodes.dead["s"] {
		return
	}
	m := w.look("s")
	if w.job == "" && w.source == GuestRuns && begun(m) && !w.userPaused {
		w.ranOn = true
	}
	target := w.targetMsg
	if target == "" {
		target = StateOf(m).TargetState
	}
	f := SourceFacts{Migration: m, Guest: w.source, JobRuns: w.job != "", RanOn: w.ranOn, Target: target, Linked: w.link && !w.nodes.dead["t"]}
	w.nodes.ended = w.nodes.ended || StateOf(m).SourceFenced != ""
	if f.ByUser, f.KeepsPaused = w.userPaused, true; w.userPaused && begun(m) && w.source == GuestRuns {
		f.Guest = GuestPaused // libvirt shows no difference
	}
	if w.ending {
		f.Ending = "the VM is being shut down"
	}
	f.Native = w.native
	f.HeldFor = time.Duration(w.r.IntN(3)) * pauseAfter
	f.Paused = StateOf(m).Mode == kubevirt.MigrationPaused
	step := NextOfSource(f)
	if step.Action != SourceNothing && step.Action != SourceWait && step.Action != SourceFollow {
		w.notef("source: %+v (%s, job %q)", step, w.source, w.job)
	}
	report := func(state string) {
		if w.link {
			w.sourceMsg = state
		}
		w.write("s", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.SourceState = state
			if state == kubevirt.SourceRunning {
				m.Status.MigrationState.FailureReason = step.Message
			}
		})
	}
	switch step.Action {
	case SourceBegin:
		began := w.write("s", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase = kubevirt.MigrationRunning
			m.Status.MigrationState.GuestPaused = w.userPaused
			m.Status.MigrationState.StartTimestamp = &metav1.Time{Time: w.now}
			m.Status.MigrationState.Options = &kubevirt.MigrationOptions{PauseAfter: int64(pauseAfter.Seconds())}
		})
		// The agent may die between the two; a refused relay is a failed job.
		if began && (w.calm || w.r.IntN(8) > 0) && (w.native || w.link && !w.closed) && w.source == GuestRuns {
			w.job, w.relay, w.copy, w.incoming = "perform", true, CopyIncoming, true
		}
	case SourceReportRunning:
		report(kubevirt.SourceRunning)
	case SourceReportGone:
		report(kubevirt.SourceGone)
	case SourceAbort:
		if w.job == "perform" {
			w.cut()
		}
	case SourcePause:
		if w.job == "" || f.Paused || f.HeldFor < pauseAfter {
			w.failf("the guest is paused without need: %+v", f)
		}
		w.write("s", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.Mode = kubevirt.MigrationPaused
		})
	case SourceEnd:
		w.source = GuestGone
		w.cut()
	case SourceResume:
		if w.userPaused {
			w.failf("a guest that its user has paused is resumed at the source")
		}
		w.source, w.ranOn = GuestRuns, true
		w.ran()
	case SourceQuery:
		w.queried = w.queried || w.link
	case SourceNothing, SourceWait, SourceFollow:
	}
}

func (w *world) targetAgent() {
	if w.nodes.dead["t"] {
		return
	}
	m := w.look("t")
	source := w.sourceMsg
	if source != kubevirt.SourceGone {
		source = StateOf(m).SourceState
	}
	jobs := w.incoming || w.finishing || w.relay && !w.native
	f := TargetFacts{Migration: m, Copy: w.copy, JobRuns: jobs, Closed: w.closed, Queried: w.queried, Source: source, Ready: true,
		Paused: StateOf(m).GuestPaused || w.sourceMsg != "" && w.userPaused, FencedFor: w.fencedFor(m)}
	step := NextOfTarget(f)
	if step.Action != TargetNothing && step.Action != TargetWait {
		w.notef("target: %+v (%s)", step, w.copy)
	}
	report := func(state string) {
		if w.link {
			w.targetMsg = state
		}
		if StateOf(w.view["t"]).TargetState != state {
			w.write("t", func(m *kubevirt.VirtualMachineInstanceMigration) { m.Status.MigrationState.TargetState = state })
		}
	}
	phase := func(p kubevirt.MigrationPhase) {
		w.write("t", func(m *kubevirt.VirtualMachineInstanceMigration) { m.Status.Phase = p })
	}
	switch step.Action {
	case TargetPrepare:
		phase(kubevirt.MigrationPreparingTarget)
	case TargetOffer:
		w.write("t", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase, m.Status.MigrationState.TargetNodeAddress = kubevirt.MigrationTargetReady, "b:1"
			if w.native {
				m.Status.MigrationState.Transport = kubevirt.TransportNative
			}
		})
	case TargetRefuse, TargetReportAbsent:
		w.closed = true
		report(kubevirt.TargetAbsent)
	case TargetHold:
		report(kubevirt.TargetArrived)
	case TargetResume:
		if w.ranSince && !w.killS && StateOf(m).SourceFenced == "" {
			w.failf("a stale guest was resumed")
		}
		if w.userPaused {
			w.failf("a guest that its user has paused is resumed at the target")
		}
		w.copy = CopyRunning
	case TargetReportRunning:
		report(kubevirt.TargetRunning)
	case TargetRemove:
		if w.copy == CopyIncoming {
			w.cut()
		}
		w.copy, w.incoming, w.finishing = CopyNone, false, false
	case TargetNothing, TargetWait:
	}
}

package migration

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// given returns a migration in a phase, with everything in order.
func given(t *testing.T, phase kubevirt.MigrationPhase) Facts {
	t.Helper()
	w := newWorld(t, 0)
	f := Facts{Migration: w.m, VMI: w.vmi, Launchers: 1, OtherNodes: 1, Turn: true, Kept: true, Seen: noon, Now: noon,
		Source: &Pod{Name: "src", UID: "s", Node: "a", Runs: true}}
	w.m.Status.Phase = phase
	if phase == "" || phase == kubevirt.MigrationPending {
		return f
	}
	w.m.Finalizers = []string{Finalizer}
	w.m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: "a", SourcePod: "src", SourcePodUID: "s", VMIUID: "2"}
	if phase == kubevirt.MigrationScheduling {
		return f
	}
	f.Target = &Pod{Name: "dst", UID: "t", Node: "b", Runs: true, Created: noon}
	s := w.m.Status.MigrationState
	s.TargetNode, s.TargetPod, s.TargetPodUID = "b", "dst", "t"
	w.vmi.Labels[kubevirt.MigrationTargetLabel] = "b"
	if phase == kubevirt.MigrationRunning {
		s.StartTimestamp = &metav1.Time{Time: noon}
	}
	return f
}

func TestNext(t *testing.T) {
	deleted := func(f *Facts) { f.Migration.DeletionTimestamp = &metav1.Time{Time: noon} }
	reported := func(source, target string) func(*Facts) {
		return func(f *Facts) {
			f.Migration.Status.MigrationState.SourceState, f.Migration.Status.MigrationState.TargetState = source, target
		}
	}
	const (
		pending    = kubevirt.MigrationPending
		scheduling = kubevirt.MigrationScheduling
		scheduled  = kubevirt.MigrationScheduled
		preparing  = kubevirt.MigrationPreparingTarget
		ready      = kubevirt.MigrationTargetReady
		running    = kubevirt.MigrationRunning
		failed     = kubevirt.MigrationFailed
		succeeded  = kubevirt.MigrationSucceeded
	)
	for _, c := range []struct {
		name   string
		phase  kubevirt.MigrationPhase
		but    func(*Facts)
		action Action
		text   string // part of the message
	}{
		{"a new one", "", nil, Adopt, ""},
		{"adopted", pending, func(f *Facts) { f.Migration.Finalizers = []string{Finalizer} }, Begin, ""},
		{"no VM named", pending, func(f *Facts) { f.Migration.Spec.VMIName = "" }, Fail, "spec.vmiName is empty"},
		{"of another namespace", pending, func(f *Facts) { f.Migration.Spec.VMIName = "other/vm" }, Fail, "of its own namespace (n)"},
		{"VM gone", pending, func(f *Facts) { f.VMI = nil }, Fail, `no VirtualMachineInstance "vm" in namespace "n"`},
		{"of a former VM", pending, func(f *Facts) {
			f.VMI.CreationTimestamp, f.Migration.CreationTimestamp = metav1.NewTime(noon), metav1.NewTime(noon.Add(-time.Second))
		}, Fail, "was deleted and made anew"},
		{"limits, and others are undecided", pending, func(f *Facts) { f.Turn, f.Undecided = false, "n/stuck" }, Wait, "such as n/stuck"},
		{"doubled", pending, func(f *Facts) { f.Before = "older" }, Fail, "migration older is to move this VM already"},
		{"forged label", pending, func(f *Facts) { f.Migration.Labels = map[string]string{TargetNodeLabel: "x"} }, Fail, "label vmgrace.io/target-node is set"},
		{"forged target", pending, func(f *Facts) { f.Migration.Status.MigrationState = &kubevirt.MigrationState{TargetNode: "x"} }, Fail, "names a target"},
		{"not migratable", pending, func(f *Facts) {
			f.VMI.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: "False", Message: "a host\ndevice"}}
		}, Fail, "not live-migratable: a host device"},
		{"no second node", pending, func(f *Facts) { f.OtherNodes = 0 }, Fail, `no node beside "a"`},
		{"shut down", pending, func(f *Facts) { f.VMI.DeletionTimestamp = &metav1.Time{Time: noon} }, Fail, "is being shut down"},
		{"not yet running", pending, func(f *Facts) { f.VMI.Status.Phase = kubevirt.VMIScheduling }, Fail, "does not run (Scheduling)"},
		{"no launcher", pending, func(f *Facts) { f.Launchers, f.Source = 0, nil }, Fail, "no launcher pod"},
		{"launcher signalled", pending, func(f *Facts) { f.Source.Deleting = true }, Fail, "launcher pod src is being shut down"},
		{"launcher held for it", pending, func(f *Facts) { f.Source.Deleting, f.Source.Held = true, true }, Adopt, ""},
		{"launcher deleted", scheduling, func(f *Facts) { f.Source.Deleting, f.Source.InTime = true, true }, Fail, "launcher pod src is being shut down"},
		{"limits", pending, func(f *Facts) { f.Turn = false }, Wait, "limits"},
		{"an old target", pending, func(f *Facts) { f.Launchers = 2 }, Wait, "more than one launcher"},
		{"an old target that stays", pending, func(f *Facts) { f.Launchers, f.Now = 2, noon.Add(StartTimeout) }, Fail, "more than one launcher pod for 15m0s"},
		{"its turn does not come", pending, func(f *Facts) { f.Turn, f.Now = false, noon.Add(24*time.Hour) }, Wait, "limits"},
		{"deleted before it began", pending, deleted, Fail, "was deleted"},

		{"budget first", scheduling, func(f *Facts) { f.Kept = false }, Expand, ""},
		{"then the pod", scheduling, nil, MakePod, ""},
		{"target starts", scheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Created: noon} }, Wait, "starts"},
		{"target runs", scheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon} }, Schedule, ""},
		{"target on the same node", scheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Node: "a", Runs: true, Created: noon} }, Fail, "own node a"},
		{"a foreign pod", scheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Foreign: true} }, Fail, "not of this migration"},
		{"no room yet", scheduling, func(f *Facts) {
			f.Target = &Pod{Name: "dst", Created: noon.Add(-time.Hour / 12), Unschedulable: "0/2 nodes", Since: noon.Add(-4 * time.Minute)}
		}, Wait, ""},
		{"no room", scheduling, func(f *Facts) {
			f.Target = &Pod{Name: "dst", Created: noon.Add(-5 * time.Minute), Unschedulable: "0/2 nodes are available", Since: noon.Add(-5 * time.Minute)}
		}, Fail, "found no node for 5m0s: 0/2 nodes are available"},
		{"an image that never comes", scheduling, func(f *Facts) {
			f.Target, f.Now = &Pod{Name: "dst", Node: "b", Created: noon}, noon.Add(15*time.Minute)
		}, Fail, "did not run within 15m0s"},
		{"a budget that cannot be made", scheduling, func(f *Facts) { f.Kept, f.Now = false, noon.Add(MakeTimeout) }, Fail, "disruption budget did not protect two pods within 1m0s"},
		{"a pod that cannot be made", scheduling, func(f *Facts) { f.Trouble, f.Now = "the webhook is down", noon.Add(MakeTimeout) }, Fail, "could not be made for 1m0s: the webhook is down"},
		{"a pod that is tried again", scheduling, func(f *Facts) { f.Trouble = "the webhook is down" }, MakePod, ""},
		{"begun long ago by a former controller", scheduling, func(f *Facts) {
			f.Migration.Status.PhaseTransitionTimestamps = []kubevirt.MigrationPhaseTransition{{Phase: scheduling, Timestamp: metav1.NewTime(noon.Add(-StartTimeout))}}
		}, Fail, "was not made"},
		{"the scheduler says nothing", scheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Created: noon.Add(-time.Minute)} }, Wait, "waits for the scheduler"},
		{"target runs, limits", scheduling, func(f *Facts) {
			f.Target, f.Turn = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon}, false
		}, Wait, "limits"},
		{"target runs, limits for ever", scheduling, func(f *Facts) {
			f.Target, f.Turn, f.Now = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon}, false, noon.Add(StartTimeout)
		}, Fail, "no room for the migration"},
		{"the hand-over is refused", scheduling, func(f *Facts) {
			f.Target, f.Now = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon}, noon.Add(StartTimeout)
		}, Schedule, ""},
		{"the hand-over is refused for ever", scheduling, func(f *Facts) {
			f.Target, f.Now, f.Trouble = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon}, noon.Add(StartTimeout+MakeTimeout), "a policy forbids it"
		}, Fail, "could not be handed to the agents within 16m0s: a policy forbids it"},
		{"aborted while scheduling", scheduling, deleted, Fail, "was deleted"},
		{"VM recreated", scheduling, func(f *Facts) { f.VMI.UID = "3" }, Fail, "made anew"},

		{"target's turn", scheduled, nil, Wait, "agent of node b"},
		{"target's agent times out", scheduled, func(f *Facts) { f.Now = noon.Add(AgentTimeout) }, Fail, "agent of node b did not take the migration on"},
		{"target refuses", preparing, reported("", kubevirt.TargetAbsent), Fail, "node b cannot take the VM"},
		{"source's agent times out", ready, func(f *Facts) { f.Now = noon.Add(AgentTimeout) }, Fail, "agent of the VM's own node a did not take the migration on"},
		{"source's node is off", ready, func(f *Facts) { f.Now, f.SourceNode.Lost = noon.Add(AgentTimeout), true }, Fail, "own node a did not take the migration on within 1m0s of TargetReady: the node is not Ready"},
		{"source's kubelet restarts or is dead, its agent works", ready, func(f *Facts) { f.SourceNode.Lost = true }, Wait, ""},
		{"source's kubelet is dead, the target starts", scheduling, func(f *Facts) {
			f.Target, f.SourceNode.Lost = &Pod{Name: "dst", Node: "b", Runs: true, Created: noon}, true
		}, Schedule, ""},
		{"source declines", ready, reported(kubevirt.SourceRunning, ""), Fail, "stayed on node a"},
		{"aborted when ready", ready, deleted, Fail, "was deleted"},
		{"target pod evicted", ready, func(f *Facts) { f.Target.Deleting = true }, Fail, "target pod dst has ended"},

		{"target's node lost, starting", scheduling, func(f *Facts) {
			f.Target, f.TargetNode.Lost = &Pod{Name: "dst", Node: "b", Created: noon}, true
		}, Fail, "node b is not Ready"},
		{"target's node lost, ready", ready, func(f *Facts) { f.TargetNode.Lost = true }, Fail, "node b is not Ready"},
		{"target's node lost while moving", running, func(f *Facts) { f.TargetNode.Lost = true }, Wait, ""},
		{"moving", running, func(f *Facts) { f.Now = noon.Add(time.Hour) }, Wait, "agent of node a moves"},
		{"aborted while moving", running, deleted, Abort, "was deleted"},
		{"asked once", running, func(f *Facts) { deleted(f); f.Migration.Status.MigrationState.AbortRequested = true }, Wait, ""},
		{"VM deleted while moving", running, func(f *Facts) { f.VMI.DeletionTimestamp = &metav1.Time{Time: noon} }, Abort, "being shut down"},
		{"launcher deleted when scheduled", scheduled, func(f *Facts) { f.Source.Deleting, f.Source.InTime = true, true }, Wait, "agent of node b"},
		{"launcher deleted, no time", scheduled, func(f *Facts) { f.Source.Deleting = true }, Fail, "launcher pod src is being shut down"},
		{"launcher deleted while moving", running, func(f *Facts) { f.Source.Deleting, f.Source.InTime = true, true }, Wait, "agent of node a moves"},
		{"launcher deleted while moving, no time", running, func(f *Facts) { f.Source.Deleting = true }, Abort, "launcher pod src is being shut down"},
		{"VMI deleted, too", running, func(f *Facts) {
			f.Source.Deleting, f.Source.InTime, f.VMI.DeletionTimestamp = true, true, &metav1.Time{Time: noon}
		}, Abort, "being shut down"},
		{"undecided", running, reported("", kubevirt.TargetArrived), Wait, "agent of node a is to report"},
		{"handed over", running, reported(kubevirt.SourceGone, kubevirt.TargetArrived), Wait, "agent of node b is to resume"},
		{"arrived", running, reported(kubevirt.SourceGone, kubevirt.TargetRunning), Move, ""},
		{"arrived, says the target alone", running, reported("", kubevirt.TargetRunning), Wait, "agent of node a is to report"},
		{"arrived, says the target, and the source that it stayed", running, reported(kubevirt.SourceRunning, kubevirt.TargetRunning), Fail, "stayed on node a"},
		{"arrived, aborted too late", running, func(f *Facts) { reported(kubevirt.SourceGone, kubevirt.TargetRunning)(f); deleted(f) }, Move, ""},
		{"arrived, label missing", running, func(f *Facts) {
			reported(kubevirt.SourceGone, kubevirt.TargetRunning)(f)
			f.VMI.Status.NodeName = "b"
		}, Move, ""},
		{"moved", running, func(f *Facts) {
			reported(kubevirt.SourceGone, kubevirt.TargetRunning)(f)
			f.VMI.Status.NodeName, f.VMI.Labels[kubevirt.NodeNameLabel] = "b", "b"
		}, Succeed, ""},
		{"moved, VMI gone since", running, func(f *Facts) { reported(kubevirt.SourceGone, kubevirt.TargetRunning)(f); f.VMI = nil }, Succeed, ""},
		{"stayed", running, reported(kubevirt.SourceRunning, ""), Fail, "stayed on node a"},
		{"QEMU killed", running, reported(kubevirt.SourceGone, kubevirt.TargetAbsent), Fail, "QEMU of node a ended"},

		{"failed, target not reported", failed, func(f *Facts) { f.Migration.Status.MigrationState.StartTimestamp = &metav1.Time{Time: noon} }, Wait, "has not reported"},
		{"failed, target's node gone", failed, func(f *Facts) {
			f.Migration.Status.MigrationState.StartTimestamp, f.TargetNode.Gone = &metav1.Time{Time: noon}, true
		}, DropPod, ""},
		{"failed before it began", failed, func(f *Facts) { f.Migration.Status.MigrationState.TargetNodeAddress = "b:1" }, DropPod, ""},
		{"failed, never taken", failed, nil, DropPod, ""},
		{"failed, somebody has deleted the pod", failed, func(f *Facts) { f.Target.Deleting, f.Target.Lingers = true, true }, DropPod, ""},
		{"failed, its pod goes", failed, func(f *Facts) { f.Target.Deleting = true }, Unlabel, ""},
		{"failed, pod gone", failed, func(f *Facts) { f.Target = nil }, Unlabel, ""},
		{"failed, tidy", failed, func(f *Facts) { f.Target = nil; delete(f.VMI.Labels, kubevirt.MigrationTargetLabel) }, Release, ""},
		{"failed and let go", failed, func(f *Facts) { f.Target, f.Migration.Finalizers = nil, nil }, Nothing, ""},
		{"succeeded, label", succeeded, nil, Unlabel, ""},
		{"succeeded, tidy", succeeded, func(f *Facts) { delete(f.VMI.Labels, kubevirt.MigrationTargetLabel) }, Release, ""},
		{"the label is another's", succeeded, func(f *Facts) { f.Before = "next" }, Release, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := given(t, c.phase)
			if c.but != nil {
				c.but(&f)
			}
			got := Next(f)
			if got.Action != c.action || !strings.Contains(got.Message, c.text) {
				t.Errorf("%+v, want %s with %q", got, c.action, c.text)
			}
			if strings.ContainsAny(got.Message, "\n\r") || got.Reason == "" {
				t.Errorf("%+v: one line and a reason are wanted", got)
			}
			if got.Action == Fail && got.Message == "" {
				t.Error("a failure without a reason")
			}
		})
	}
}

// Given a migration that waits. Then what it waits for is said, once and after a moment; its turn alone is what the
// CRD says of each new one.
func TestAWaitIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		phase kubevirt.MigrationPhase
		but   func(*Facts)
		want  string
	}{
		"two launchers": {kubevirt.MigrationPending, func(f *Facts) { f.Launchers = 2 }, "more than one launcher pod"},
		"no node": {kubevirt.MigrationScheduling, func(f *Facts) {
			f.Target = &Pod{Name: "dst", Created: noon, Unschedulable: "0/2 nodes", Since: noon}
		}, "waits for the scheduler: 0/2 nodes"},
		"its turn": {kubevirt.MigrationPending, func(f *Facts) {
			f.Turn, f.Migration.Status.MigrationState = false, &kubevirt.MigrationState{WaitsFor: kubevirt.MigrationWaitsForTurn}
		}, ""},
		"its turn, without the CRD's default": {kubevirt.MigrationPending, func(f *Facts) { f.Turn = false }, ""},
		"nothing":                             {kubevirt.MigrationScheduling, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := given(t, c.phase)
			if c.but != nil {
				c.but(&f)
			}
			if s := Next(f); s.Waits != "" || c.want != "" && s.Again != SayAfter {
				t.Errorf("at once: %q, again after %v", s.Waits, s.Again)
			}
			f.Now = noon.Add(SayAfter)
			s := Next(f)
			if !strings.Contains(s.Waits, c.want) || c.want == "" && s.Waits != "" {
				t.Errorf("said: %q, want %q", s.Waits, c.want)
			}
			f.Migration.Status.MigrationState = &kubevirt.MigrationState{WaitsFor: s.Waits}
			if s := Next(f); s.Action == Wait && s.Waits != "" {
				t.Errorf("said twice: %q", s.Waits)
			}
		})
	}
}

// No phase before Running lasts without an event: the wait itself ends it.
func TestEveryWaitBeforeRunningEnds(t *testing.T) {
	for name, c := range map[string]struct {
		phase kubevirt.MigrationPhase
		but   func(*Facts)
		most  time.Duration
	}{
		"several launchers": {kubevirt.MigrationPending, func(f *Facts) { f.Launchers = 2 }, 15 * time.Minute},
		"no budget":         {kubevirt.MigrationScheduling, func(f *Facts) { f.Kept = false }, time.Minute},
		"unschedulable": {kubevirt.MigrationScheduling, func(f *Facts) {
			f.Target = &Pod{Name: "dst", Created: noon, Unschedulable: "no", Since: noon}
		}, 5 * time.Minute},
		"no scheduler":     {kubevirt.MigrationScheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Created: noon} }, 15 * time.Minute},
		"no image":         {kubevirt.MigrationScheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Node: "b", Created: noon} }, 15 * time.Minute},
		"scheduled":        {kubevirt.MigrationScheduled, func(*Facts) {}, time.Minute},
		"preparing":        {kubevirt.MigrationPreparingTarget, func(*Facts) {}, time.Minute},
		"ready":            {kubevirt.MigrationTargetReady, func(*Facts) {}, time.Minute},
		"clock set back":   {kubevirt.MigrationScheduled, func(f *Facts) { f.Seen = noon.Add(time.Hour) }, time.Hour + time.Minute},
		"pod of tomorrow":  {kubevirt.MigrationScheduling, func(f *Facts) { f.Target = &Pod{Name: "dst", Created: noon.Add(24 * time.Hour)} }, 15 * time.Minute},
		"budget and error": {kubevirt.MigrationScheduling, func(f *Facts) { f.Kept, f.Trouble = false, "x" }, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			f := given(t, c.phase)
			c.but(&f)
			for {
				step := Next(f)
				if step.Action == Fail {
					break
				}
				if step.Again <= 0 {
					t.Fatalf("%+v waits for ever", step)
				}
				f.Now = f.Now.Add(step.Again)
			}
			if took := f.Now.Sub(noon); took > c.most {
				t.Errorf("it ends after %v, want %v", took, c.most)
			}
		})
	}
}

func TestTargetPodNamesAreNames(t *testing.T) {
	for _, vmi := range []string{"a", strings.Repeat("x", 253), "a." + strings.Repeat("-", 60) + "b"} {
		name := TargetPodName(vmi, "u1")
		if len(name) > 63 || !strings.HasPrefix(name, "virt-launcher-") || strings.Contains(name, ".-") || name == TargetPodName(vmi, "u2") {
			t.Errorf("%q", name)
		}
	}
}

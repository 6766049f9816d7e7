//go:build !unit

package handover

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a guest that never powers off, whose VMI's grace period is edited before and after
// its migration. When it is shut down, then the last edit counts, and QEMU is signalled on
// the target at most 50 ms after the deadline. Otherwise the guest would have too little
// time, or its node would wait too long.
func TestTheGracePeriodOfAGuestThatHasMovedEndsAtTheTarget(t *testing.T) {
	w := given(t)
	for _, c := range []struct {
		what  string
		cause string
		end   func(v *vm)
	}{
		{"VMI deleted, its grace period edited before and after the move", "VMIDeleted", func(v *vm) { w.api.Kubectl(w, "delete", "vmi", v.Name, "--wait=false") }},
		{"launcher signalled, the agent restarted after the move and in mid-grace", "LauncherSignal", func(v *vm) {
			w.b.restart(w)
			v.guardedFor(3)
			if err := v.here.shim.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			node.Eventually(w, soon, func() bool { return v.here.launcher.Status().Deadline != "" }, "the shutdown does not begin")
			w.b.agent.Kill()
			w.b.agent.Launch(w)
		}},
	} {
		v := w.guarded(node.Spec{Behaviour: "deaf"})
		v.watchForTwo()
		v.period(7)
		v.schedule(w.b, "")
		if !v.decided() {
			t.Fatalf("it was not moved: %s", v.whyFailed())
		}
		v.guardedFor(7)
		v.period(3)
		v.guardedFor(3)
		arrived := w.b.Arrived(w, v.Guest)
		// When the guest is to end,
		c.end(v)
		// then it has these 3 s on the target, once.
		s := v.here.launcher.WaitStopped(w, soon)
		if s.Outcome != "Forced" || s.Cause != c.cause {
			t.Errorf("%s: status.json: %+v", c.what, s)
		}
		begin, deadline := node.WallTime(w, s.StartedAt), node.WallTime(w, s.Deadline)
		if took := deadline.Sub(begin); took != 3*time.Second {
			t.Errorf("%s: a grace period of %v", c.what, took)
		}
		sent, ok := arrived.Sent(w, unix.SIGTERM)
		late, machine := sent.Sub(deadline), w.b.Late(begin, sent)
		if !ok || late < 0 || late > 50*time.Millisecond+machine {
			t.Errorf("%s: signalled (%v) %v after the deadline; the machine was %v late", c.what, ok, late, machine)
		}
		t.Logf("%s: signalled %v after the deadline", c.what, late)
	}
}

// period edits the VMI's grace period.
func (v *vm) period(seconds int) {
	v.w.Helper()
	v.w.api.Kubectl(v.w, "patch", "vmi", v.Name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"terminationGracePeriodSeconds":%d}}`, seconds))
}

func (v *vm) guardedFor(seconds int64) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		s, ok := v.here.agent.StatusOf(v.w, v.Guest)
		return ok && s.GracePeriodSeconds == seconds
	}, "it is not guarded with a grace period of %d s", seconds)
}

package faults

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestThirtyDeafGuestsWithOneDeadline(t *testing.T) {
	const guests = 30
	n := node.New(t)
	a := n.Agent(t).Start(t)
	stranger := n.Boot(t, node.Spec{Namespace: "vmgrace-stranger", Firmware: true}) // no launcher directory
	vms := make([]*node.VM, guests)
	for i := range vms {
		vms[i] = a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
	}
	first := time.Now()
	for _, v := range vms {
		v.SignalShim(t)
	}
	var earliest, latest time.Time
	for _, v := range vms {
		deadline := node.WallTime(t, v.WaitBegun(t))
		v.WaitGone(t, soon)
		sent, ok := v.Sent(t, unix.SIGTERM)
		if !ok {
			t.Fatalf("nobody sent SIGTERM to the QEMU of %s", v.Domain)
		}
		// The deadline in status.json is cut to milliseconds.
		if took, machine := sent.Sub(deadline), n.Late(deadline, sent); took < 0 || took > late+machine {
			t.Errorf("%s: SIGTERM %v after its deadline; the machine is %v late", v.Domain, took, machine)
		}
		if earliest.IsZero() || sent.Before(earliest) {
			earliest = sent
		}
		if sent.After(latest) {
			latest = sent
		}
	}
	if earliest.Before(first.Add(4 * time.Second)) {
		t.Errorf("a SIGTERM came %v early", first.Add(4*time.Second).Sub(earliest))
	}
	t.Logf("SIGTERMs from %v to %v after the first trigger", earliest.Sub(first), latest.Sub(first))
	for _, v := range vms {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
	// And the agent's own metric says the same.
	if sent := a.Metrics(t)[`vmgrace_deadline_overshoot_seconds_bucket{le="0.05"}`]; sent != guests {
		t.Errorf("%v of %d signals were sent less than %v after the deadline", sent, guests, late)
	}
	if stranger.Gone() {
		t.Error("a domain that is not ours was touched")
	}
	if _, ok := a.StatusOf(t, stranger); ok {
		t.Error("a domain that is not ours was recorded")
	}
	for _, phase := range []string{"Running", "ShuttingDown", "Destroying"} {
		if counted := a.Metrics(t)[fmt.Sprintf("vmgrace_vms{phase=%q}", phase)]; counted != 0 {
			t.Errorf("a domain that is not ours is counted: %v %s", counted, phase)
		}
	}
}

func TestVMsThatComeAndGoLeaveNothingInTheAgent(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	round := func() {
		vms := make([]*node.VM, 5)
		for i := range vms {
			vms[i] = a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=0")
		}
		for _, v := range vms {
			v.SignalShim(t)
		}
		for _, v := range vms {
			v.WaitStopped(t, "LauncherSignal", "Forced")
			v.WaitExit(t, 0)
		}
	}
	round() // opens the connections that the agent keeps
	const more = 20
	first, now := a.Metrics(t), map[string]float64{}
	for range more / 5 {
		round()
	}
	defer func() {
		t.Logf("goroutines %v, then %v; fds %v, then %v", first["go_goroutines"], now["go_goroutines"], first["process_open_fds"], now["process_open_fds"])
	}()
	// The launcher directories stay, and each has a keeper, which is one goroutine. The
	// agent closes unused connections to libvirt after a while, so it may have fewer
	// descriptors than at first.
	node.Eventually(t, 2*time.Minute, func() bool {
		now = a.Metrics(t)
		return now["go_goroutines"] <= first["go_goroutines"]+more+5 && now["process_open_fds"] <= first["process_open_fds"]
	}, "the agent holds more than the %v goroutines and %v fds of the beginning", first["go_goroutines"], first["process_open_fds"])
}

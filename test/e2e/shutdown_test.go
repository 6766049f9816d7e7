package e2e

import (
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// shutdown is a shutdown that has begun.
type shutdown struct{ startedAt, deadline time.Time }

func (v *vm) parse(text string) time.Time {
	v.w.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		v.w.Fatalf("%s: %v", v.Domain, err)
	}
	return at
}

// either is the cause of a shutdown for a deleted VMI whose launcher pod is deleted with
// it. The agent may see either of them first.
const either = "VMIDeleted|LauncherSignal"

// is tells whether a cause is one of the wanted ones, which "|" separates.
func is(cause, want string) bool { return slices.Contains(strings.Split(want, "|"), cause) }

// begun waits until status.json tells of a shutdown and checks its cause and grace period.
func (v *vm) begun(cause string, grace time.Duration) shutdown {
	v.w.Helper()
	var told node.Status
	node.Eventually(v.w, soon, func() bool { told = v.launcherStatus(); return told.Deadline != "" }, "no shutdown of %s begins", v.Domain)
	s := shutdown{v.parse(told.StartedAt), v.parse(told.Deadline)}
	if got := s.deadline.Sub(s.startedAt); got != grace || !is(told.Cause, cause) {
		v.w.Errorf("%s has a shutdown for %s of %v, want %s of %v", v.Domain, told.Cause, got, cause, grace)
	}
	return s
}

// kept asserts that node-agent status still tells of the same shutdown.
func (v *vm) kept(was shutdown) {
	v.w.Helper()
	var r node.VMStatus
	node.Eventually(v.w, soon, func() (ok bool) { r, ok = v.record(); return ok }, "no record of %s", v.Domain)
	if r.Deadline == "" || !v.parse(r.Deadline).Equal(was.deadline) || !v.parse(r.StartedAt).Equal(was.startedAt) {
		v.w.Errorf("the shutdown of %s was %v, it has become %+v", v.Domain, was, r)
	}
}

// destroyedAt asserts by QEMU's own log that the agent signalled QEMU at the deadline: not
// before it, and less than 50 ms after it. Where no core was free, the limit grows by the
// lateness of a plain thread, once for the agent and once for QEMU.
func (v *vm) destroyedAt(deadline time.Time) {
	v.w.Helper()
	v.WaitGone(v.w, time.Until(deadline)+soon)
	s, ok := node.ParseTermination(v.qemuLog())
	late, machine := s.At.Sub(deadline), 2*v.w.late.Worst(deadline, s.At)
	if !ok || s.Signal != 15 || !strings.HasSuffix(s.Process, "node-agent") || late < 0 || late >= 50*ms+machine {
		v.w.Errorf("%s: %+v (logged: %v), %v after the deadline; want signal 15 from the node-agent after 0 to 50 ms and %v that the machine was late", v.Domain, s, ok, late, machine)
	}
	v.w.step("destroyed %.1f ms after the deadline", late.Seconds()*1000)
}

// offByItself asserts that the guest has shut down by itself after a request.
func (v *vm) offByItself() {
	v.w.Helper()
	v.WaitGone(v.w, soon)
	serial := v.Serial(v.w)
	if !strings.Contains(serial, "vmgrace-guest: off") || !strings.Contains(serial, "vmgrace-guest: press 1") {
		v.w.Errorf("%s did not shut down by itself: %s\n%s", v.Domain, serial, v.qemuLog())
	}
	v.w.step("the guest is off by itself")
}

func (v *vm) qemuLog() string { return v.Node.Run(v.w, "cat /var/log/libvirt/qemu/"+v.Domain+".log") }

// ended asserts that no record is left of the shutdown and that exactly these Events tell
// of it, with this cause and outcome.
func (v *vm) ended(cause, outcome string, events ...string) {
	v.w.Helper()
	v.forgottenBy(v.Node)
	v.told(events...)
	var causes []string
	for _, e := range v.events() {
		got, rest, _ := strings.Cut(e.Message, ": ")
		switch e.Reason {
		case "ShutdownCompleted", "ShutdownForced":
			if !strings.HasPrefix(rest, outcome+" after ") {
				v.w.Errorf("%s: %s %q, want %s", v.Domain, e.Reason, e.Message, outcome)
			}
			fallthrough
		case "ShutdownStarted":
			causes = append(causes, got)
		}
	}
	if len(causes) != 2 || causes[0] != causes[1] || !is(causes[0], cause) {
		v.w.Errorf("%s: the causes at start and end are %v, want %s", v.Domain, causes, cause)
	}
	v.w.step("no record left; %s, Events %v", causes[0], events)
}

// podGone waits until the launcher pod is gone. before is when kubelet would kill its
// containers.
func (v *vm) podGone(before time.Time) {
	v.w.Helper()
	gone := func() bool {
		return v.w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: "virt-launcher-" + v.Name, Path: "{.metadata.name}"}) == ""
	}
	node.Eventually(v.w, time.Until(before), gone, "%s outlives the kill of its containers", v.launcherPod())
	v.w.step("the launcher pod is gone")
}

// event is an Event on a VMI.
type event struct{ uid, source, Reason, Message string }

// events returns the agents' Events about all VMIs.
func (w *world) events() []event {
	w.Helper()
	out := w.find(objects.Query{Kind: "event", Namespace: namespace, Fields: "involvedObject.kind=VirtualMachineInstance",
		Path: `{range .items[*]}{.involvedObject.uid}{"\t"}{.reportingComponent}/{.count}{"\t"}{.reason}{"\t"}{.message}{"\n"}{end}`})
	var all []event
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSpace(line), "\t", 4)
		if len(f) != 4 {
			w.Fatalf("Event %q", line)
		}
		if f[1] == "vmgrace-cluster-controller/" {
			continue
		}
		all = append(all, event{f[0], f[1], f[2], f[3]})
	}
	return all
}

func (v *vm) events() []event {
	v.w.Helper()
	return slices.DeleteFunc(v.w.events(), func(e event) bool { return e.uid != v.uid })
}

// told waits until the VMI has exactly these Events of the agents, each once.
func (v *vm) told(events ...string) {
	v.w.Helper()
	slices.Sort(events)
	var got []string
	node.Eventually(v.w, soon, func() bool {
		got = nil
		for _, e := range v.events() {
			if e.source != "node-agent/1" {
				v.w.Errorf("%s: %+v is not one of the node-agent, told once", v.Domain, e)
			}
			got = append(got, e.Reason)
		}
		slices.Sort(got)
		return slices.Equal(got, events)
	}, "Events of %s: want %v", v.Domain, events)
}

// untouched asserts that VMs run and that no shutdown of them has begun.
func (w *world) untouched(vms ...*vm) {
	w.Helper()
	for _, n := range w.Nodes {
		var records []node.VMStatus
		node.Eventually(w, soon, func() (ok bool) { records, ok = w.records(n); return ok }, "no agent on %s", n.Name)
		for _, v := range vms {
			if v.Node != n {
				continue
			}
			i := slices.IndexFunc(records, func(r node.VMStatus) bool { return r.Domain == v.Domain })
			if i < 0 || records[i].Phase != "Running" || records[i].Deadline != "" {
				w.Errorf("%s is not left alone: %+v", v.Domain, records)
			}
			v.runs()
		}
	}
}

// runs asserts that the guest that was booted is there and was not asked to shut down.
func (v *vm) runs() {
	v.w.Helper()
	if v.Gone(v.w) {
		v.w.Errorf("%s is gone: %s", v.Domain, v.qemuLog())
	}
	if n := v.Presses(v.w); n != 0 {
		v.w.Errorf("%s was asked %d times to shut down", v.Domain, n)
	}
}

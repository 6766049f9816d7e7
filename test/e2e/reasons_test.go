package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// condition sets the condition DisruptionTarget, as Kubernetes does before it deletes a
// pod. Without a time the condition would be older than 2 minutes, and the disruption
// controller would set it to False.
func (v *vm) condition(status, reason string) {
	v.w.Helper()
	v.w.Kubectl(v.w, "patch", "-n", namespace, v.launcherPod(), "--subresource=status", "-p", fmt.Sprintf(
		`{"status":{"conditions":[{"type":"DisruptionTarget","status":%q,"reason":%q,"lastTransitionTime":%q}]}}`,
		status, reason, time.Now().UTC().Format(time.RFC3339)))
}

// begins waits until the VM's shutdown has begun. A held shutdown has not begun.
func (v *vm) begins() (told node.Status) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool { told = v.launcherStatus(); return told.Phase == "ShuttingDown" }, "no shutdown of %s begins", v.Domain)
	return told
}

// Given VMs whose launchers allow their shutdown to be held. When a launcher is deleted for
// a reason for which nobody moves the VM, then the shutdown begins at once, or after the 5
// s that a mark may take. Otherwise users would wait for a migration that nobody creates.
func TestAShutdownIsHeldForNothingButAMoveThatSomebodyMakes(t *testing.T) {
	const (
		preempted = "PreemptionByScheduler"
		grace     = 2 * time.Second
		atOnce    = 2 * time.Second // this includes the time that kubectl takes
		unmarked  = 6 * time.Second // this includes the 5 s that a mark may take
	)
	w := given(t)
	w.controller()
	w.holding("60s")
	firmware := plan{Spec: node.Spec{Firmware: true}, grace: int(grace.Seconds()), strategy: "LiveMigrate"}
	rows := []struct {
		name   string
		before func(*vm)
		args   []string
		cause  string
		within time.Duration
	}{
		{"plain deletion", func(*vm) {}, nil, "LauncherSignal", atOnce},
		{"no more disrupted", func(v *vm) { v.condition("False", preempted) }, nil, "LauncherSignal", atOnce},
		{"node pressure", func(v *vm) { v.condition("True", "TerminationByKubelet") }, nil, "LauncherSignal", atOnce},
		{"eviction", func(v *vm) { v.condition("True", "EvictionByEvictionAPI") }, nil, "LauncherSignal", atOnce},
		{"strategy None by now", func(v *vm) {
			w.Kubectl(t, "patch", "vmi", "-n", namespace, v.Name, "--type=merge", "-p", `{"spec":{"evictionStrategy":"None"}}`)
			v.condition("True", preempted)
		}, nil, "LauncherSignal", unmarked},
		{"not migratable by now", func(v *vm) {
			w.Kubectl(t, "patch", "vmi", "-n", namespace, v.Name, "--subresource=status", "--type=merge", "-p",
				`{"status":{"conditions":[{"type":"LiveMigratable","status":"False","reason":"Test"}]}}`)
			v.condition("True", preempted)
		}, nil, "LauncherSignal", unmarked},
		{"VMI deleted with it", func(v *vm) {
			v.condition("True", preempted)
			w.delete("vmi/" + v.Name)
		}, []string{"--ignore-not-found"}, either, atOnce},
	}
	all := []*vm{w.holdable(firmware, "60")}
	plans := make([]plan, len(rows)) // one VM more than rows: the last is deleted with a shorter grace period
	for i := range plans {
		plans[i] = firmware
	}
	plans[len(plans)-1].grace = 30
	all = append(all, w.vms(plans...)...)
	w.liveMigratable(all[1:]...)
	for i, row := range rows {
		v := all[i]
		row.before(v)
		from := time.Now()
		w.delete(append([]string{v.launcherPod()}, row.args...)...)
		v.begins()
		s := v.begun(row.cause, grace)
		if after := s.startedAt.Sub(from); after > row.within || row.within == unmarked && after < 5*time.Second {
			t.Errorf("%s: the shutdown begins %v after the deletion", row.name, after)
		}
		v.destroyedAt(s.deadline)
		if got := v.migrations(); got != "" {
			t.Errorf("%s: migrations %s", row.name, got)
		}
		w.step("%s", row.name)
	}

	// Given a pod that has less time than the guest's grace period: no time is left to hold
	// the shutdown.
	v := all[len(rows)]
	v.condition("True", preempted)
	from := time.Now()
	w.delete(v.launcherPod(), "--grace-period=6")
	told := v.begins()
	begun, deadline := v.parse(told.StartedAt), v.parse(told.Deadline)
	if left := deadline.Sub(begun); begun.Sub(from) > atOnce || left < 2*time.Second || left > 6*time.Second {
		t.Errorf("the pod is deleted with 6 s at %v, the guest has %v from %v", from, left, begun)
	}
	v.destroyedAt(deadline)
	w.step("a shorter grace period")
}

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// condition is what Kubernetes says of a pod that it is about to delete. Without a
// time it would be older than 2 minutes, and the disruption controller would set it to False.
func (v *vm) condition(status, reason string) {
	v.w.Helper()
	v.w.Kubectl(v.w, "patch", "-n", namespace, v.launcherPod(), "--subresource=status", "-p", fmt.Sprintf(
		`{"status":{"conditions":[{"type":"DisruptionTarget","status":%q,"reason":%q,"lastTransitionTime":%q}]}}`,
		status, reason, time.Now().UTC().Format(time.RFC3339)))
}

// begins waits until a shutdown has begun: one that is held has not.
func (v *vm) begins() (told node.Status) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool { told = v.launcherStatus(); return told.Phase == "ShuttingDown" }, "no shutdown of %s begins", v.Domain)
	return told
}

// Every launcher of these says that its shutdown may be held.
func TestAShutdownIsHeldForNothingButAMoveThatSomebodyMakes(t *testing.T) {
	const (
		preempted = "PreemptionByScheduler"
		grace     = 2 * time.Second
		atOnce    = 2 * time.Second // and what kubectl takes
		unmarked  = 6 * time.Second // the 5 s that a mark may take
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
	plans := make([]plan, len(rows)) // one more: the last is deleted with a shorter grace period
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

	// Where the pod has less time than the guest's grace period there is none to hold.
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

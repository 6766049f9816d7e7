package evacuation

import (
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// gates are the reasons of a pod's condition DisruptionTarget for which its VM may be
// migrated, with the feature gate of each.
var gates = map[string]string{CausePreemption: GatePreemption, CauseNoExecute: GateNoExecute}

// HoldReason returns the reason for which the shutdown of a launcher pod that is being
// deleted is held, "" if it is not. It is the reason of the pod's condition, else the cause
// of its VM's mark, which keeps the first reason. holdFor is the pod's annotation.
func HoldReason(holdFor, disruption, cause string) string {
	for _, reason := range []string{disruption, cause} {
		if gates[reason] != "" && slices.Contains(strings.Split(holdFor, ","), reason) {
			return reason
		}
	}
	return ""
}

// disruptionWindow is the longest time between a pod's condition DisruptionTarget and the
// deletion that it explains. The scheduler and the taint manager write the condition and
// delete at once; their clocks and the API server's may differ.
const disruptionWindow = 30 * time.Second

// ExplainsDeletion reports whether a condition DisruptionTarget that has been True since then
// is why its pod is deleted. kill is the pod's deletionTimestamp, graceSeconds its
// deletionGracePeriodSeconds. Their difference is the time of the deletion: the API server
// keeps it when the grace period is shortened later. A condition without a time has an
// unknown age, and counts.
func ExplainsDeletion(since, kill time.Time, graceSeconds *int64) bool {
	if since.IsZero() {
		return true
	}
	deleted := kill
	if graceSeconds != nil {
		deleted = kill.Add(-time.Duration(min(max(*graceSeconds, 0), maxGraceSeconds)) * time.Second)
	}
	return deleted.Sub(since).Abs() <= disruptionWindow
}

// Disruption is the state of a VM whose launcher pod is being deleted by Kubernetes.
type Disruption struct {
	VMI       *kubevirt.VirtualMachineInstance
	Strategy  kubevirt.EvictionStrategy // StrategyOf the VMI
	NodeReady bool                      // the VM's node
	// Deleting means that the launcher pod on the VM's node has a deletionTimestamp.
	Deleting bool
	// Reason is that of the pod's condition DisruptionTarget, "" if it is not True or does
	// not explain the deletion. HoldFor is the pod's annotation.
	Reason, HoldFor string
	// BesideKubeVirt means that KubeVirt marks and moves the VM: its marks have no cause. A
	// launcher that nobody holds may be moved in time all the same.
	BesideKubeVirt bool
}

// reasonMarked is the reason of a VM that is marked already.
const reasonMarked = "Marked"

// disruptionRules are read from top to bottom: the first that holds is why the VM is not
// marked.
var disruptionRules = []struct {
	reason string
	holds  func(*Disruption, *Settings) bool
}{
	{"PodNotDeleting", func(d *Disruption, _ *Settings) bool { return !d.Deleting }},
	{"VMIDeleting", func(d *Disruption, _ *Settings) bool { return d.VMI.DeletionTimestamp != nil }},
	{"VMIFinished", func(d *Disruption, _ *Settings) bool { return d.VMI.Final() }},
	{"AnotherReason", func(d *Disruption, _ *Settings) bool { return gates[d.Reason] == "" }},
	{"GateOff", func(d *Disruption, s *Settings) bool { return !s.Gate(gates[d.Reason]) }},
	{"StrategyNone", func(d *Disruption, _ *Settings) bool {
		return d.Strategy != kubevirt.StrategyExternal && !migrates(d.Strategy)
	}},
	{"NotMigratable", func(d *Disruption, _ *Settings) bool {
		return d.Strategy != kubevirt.StrategyExternal && !d.VMI.Migratable()
	}},
	// Such a pod was created while the webhook did not run.
	{"NotHeld", func(d *Disruption, _ *Settings) bool {
		return !d.BesideKubeVirt && d.Strategy != kubevirt.StrategyExternal && HoldReason(d.HoldFor, d.Reason, "") == ""
	}},
	{"NodeNotReady", func(d *Disruption, _ *Settings) bool { return !d.NodeReady }},
	{reasonMarked, func(d *Disruption, _ *Settings) bool {
		return d.VMI.Marked() && (d.BesideKubeVirt || ExplanationOf(d.VMI).Cause == d.Reason)
	}},
}

// Disrupted decides whether a VM is marked because Kubernetes deletes its launcher pod.
// The reason is for logs.
func Disrupted(d *Disruption, s *Settings) (mark bool, reason string) {
	for _, rule := range disruptionRules {
		if rule.holds(d, s) {
			return false, rule.reason
		}
	}
	return true, d.Reason
}

// HeldUntil returns the latest end of a hold. kubelet kills the pod at kill, graceSeconds
// after its deletion. reserve and allowance are the values of two of its annotations.
func HeldUntil(kill time.Time, graceSeconds int64, reserve, allowance string) time.Time {
	until := kill
	if n, ok := parseSeconds(reserve); ok {
		until = kill.Add(-n)
	}
	if n, ok := parseSeconds(allowance); ok {
		if least := kill.Add(n - time.Duration(min(graceSeconds, maxGraceSeconds))*time.Second); least.Before(until) {
			return least
		}
	}
	return until
}

// killMargin is how long before the launcher's kill an agent ends a shutdown at the latest.
const killMargin = 2 * time.Second

// InTime reports whether a launcher pod has time before the shutdown of its VM has to begin.
// It is killed killSeconds after its deletion; reserve and padding are the values of two of
// its annotations. The agent of its node decides until when.
func InTime(vmi *kubevirt.VirtualMachineInstance, killSeconds int64, reserve, padding string) bool {
	least := killMargin
	if n, ok := parseSeconds(padding); ok {
		least = max(least, n)
	}
	needs := time.Duration(min(graceSeconds(vmi), maxGraceSeconds))*time.Second + least
	if n, ok := parseSeconds(reserve); ok {
		needs = max(needs, n)
	}
	return time.Duration(min(killSeconds, maxGraceSeconds))*time.Second > needs
}

package agent

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The reasons of Events.
const (
	reasonStarted       = "ShutdownStarted"
	reasonHeld          = "ShutdownHeld"
	reasonCompleted     = "ShutdownCompleted"
	reasonForced        = "ShutdownForced"
	reasonInvalid       = "InvalidGracePeriod"
	reasonShortened     = "GraceShortened"
	reasonDestroyFailed = "DestroyFailed"
	reasonPodTooShort   = "PodGraceTooShort"
	reasonSaveCut       = "SaveCutShort"
)

// report sends an Event once per shutdown.
func (k *keeper) report(reason string, warning bool, message string) {
	r := k.vm.Record()
	k.reportAs(reason, strconv.FormatInt(r.Shown().StartedAt.UnixMilli(), 10), warning, message)
}

// reportAs sends an Event once per key.
func (k *keeper) reportAs(reason, key string, warning bool, message string) {
	uid, _ := k.vm.Owner()
	if k.a.cfg.Cluster == nil || uid == "" {
		return
	}
	k.a.cfg.Cluster.Report(Event{
		Namespace: k.vm.Namespace, Name: k.vm.Name, UID: uid,
		Reason: reason, Message: message, Warning: warning, Key: key, At: k.a.cfg.Clock.Wall().UTC(),
	})
}

func (k *keeper) warnOfPod(d grace.Decision, now grace.Mono) {
	pod, need := k.vm.Pod(), k.vm.PodNeeds()
	k.reportAs(reasonPodTooShort, pod.UID, true, fmt.Sprintf("the launcher pod has a terminationGracePeriodSeconds of %d; the VM's grace period needs at least %d",
		grace.WholeSeconds(pod.GracePeriod), grace.WholeSeconds(need)))
	k.log.Warn("the launcher pod would be killed before the VM's grace period is over", "pod", pod.UID, "has", pod.GracePeriod, "needs", need)
	k.vm.Done(d, grace.Result{}, now)
}

func (k *keeper) warnOfSave(d grace.Decision, now grace.Mono) {
	deadline := k.vm.Record().Shutdown.DeadlineAt
	k.log.Warn("the VM is being saved, and its deadline cuts that", "deadline", deadline)
	k.report(reasonSaveCut, true, fmt.Sprintf("the VM is being saved, and is destroyed at %s, whether or not the save is complete by then", deadline.Format(time.RFC3339)))
	k.vm.Done(d, grace.Result{}, now)
}

func (k *keeper) destroyFailed(d grace.Decision, now grace.Mono) {
	k.report(reasonDestroyFailed, true, "QEMU survives SIGTERM, SIGKILL and libvirt's destroy; retrying")
	k.a.cfg.Meter.Destroyed("failed")
	k.log.Error("QEMU cannot be killed (a process in D state?); retrying at longer intervals", "rule", d.Rule, "pid", k.vm.Record().Instance.PID)
	k.vm.Done(d, grace.Result{}, now)
}

// announce runs when the shutdown is durable, or will not be soon.
func (k *keeper) announce(d grace.Decision, now grace.Mono) {
	defer k.vm.Done(d, grace.Result{}, now)
	r := k.vm.Record()
	if !r.ShuttingDown() {
		k.report(reasonHeld, false, fmt.Sprintf("%s: the guest is not asked to shut down yet: the VM may be moved until %s",
			r.Hold.Reason, r.Hold.UntilAt.Format(time.RFC3339)))
		return
	}
	s := r.Shutdown
	text := fmt.Sprintf("%s: the guest is asked to shut down and has until %s (grace period %s, stated by: %s)",
		s.Cause, s.DeadlineAt.Format(time.RFC3339), r.Period.Length, r.Period.Source)
	if s.DryRun {
		text += "; dry run: nothing is done"
	}
	k.report(reasonStarted, false, text)
	if k.vm.Restored() {
		k.log.Info("a shutdown goes on", "cause", s.Cause, "deadline", s.DeadlineAt)
		return
	}
	k.log.Info("shutdown begins", "rule", d.Rule, "cause", s.Cause, "gracePeriod", r.Period.Length,
		"source", r.Period.Source, "deadline", s.DeadlineAt)
	if s.DryRun {
		k.log.Info("dry run: would ask the guest to shut down now, and destroy it at its deadline", "deadline", s.DeadlineAt)
	}
}

func (k *keeper) shorten(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.arm()
	if d.Cause == grace.LauncherDied {
		k.log.Info("the launcher died in mid-grace: the deadline is now", "rule", d.Rule)
		return
	}
	r := k.vm.Record()
	deadline := r.Shutdown.DeadlineAt
	if d.Cause == grace.NodeShutdown {
		k.a.cfg.Meter.Rejected("node_shutdown_delay")
		k.log.Warn("the node goes down before the VM's deadline: the deadline is earlier now; see InhibitDelayMaxSec of logind.conf",
			"rule", d.Rule, "gracePeriod", r.Period.Length, "deadline", deadline)
		k.report(reasonShortened, true, fmt.Sprintf("the node goes down before the end of the VM's grace period of %s: logind delays that no longer (InhibitDelayMaxSec); the deadline is %s now, to leave QEMU its --destroy-timeout of %s",
			r.Period.Length, deadline.Format(time.RFC3339), k.a.cfg.Policy.DestroyTimeout))
		return
	}
	k.log.Warn("kubelet kills the launcher pod before the VM's deadline: the deadline is earlier now", "rule", d.Rule, "deadline", deadline)
	k.report(reasonShortened, true, fmt.Sprintf("the launcher pod is killed before the end of the VM's grace period of %s; the deadline is %s now",
		r.Period.Length, deadline.Format(time.RFC3339)))
}

func (k *keeper) reportEnd(e *grace.Ending) {
	if r := k.vm.Record(); e.Outcome == grace.Migrated && !r.ShuttingDown() {
		return // it was only held, and nothing was shut down
	}
	if !k.vm.Recorded() {
		return // a launcher without a VM, such as a failed migration's: its VM may run elsewhere
	}
	reason := reasonCompleted
	if e.Outcome == grace.Forced {
		reason = reasonForced
	}
	text := fmt.Sprintf("%s: %s after %s", e.Cause, e.Outcome, e.Took.Round(time.Millisecond))
	if e.Message != "" {
		text += ", " + e.Message
	}
	k.report(reason, e.Outcome == grace.Forced, text)
}

func (k *keeper) invalidPeriod(d grace.Decision, now grace.Mono) {
	source, text := d.Source, d.Text
	k.vm.Done(d, grace.Result{}, now)
	k.a.cfg.Meter.Rejected("grace_period")
	length, err := grace.ParseSeconds(text)
	if errors.Is(err, grace.ErrTooLong) {
		k.log.Warn("the stated grace period is too long; using the maximum", "source", source, "stated", text, "using", length)
		return
	}
	if source == grace.SourceVMI {
		k.reportAs(reasonInvalid, text, true, fmt.Sprintf("terminationGracePeriodSeconds %.64q is invalid; the next source or the default is used", text))
	}
	k.log.Warn("the stated grace period is invalid; using the next source or --default-grace-period", "source", source, "stated", text, "err", err)
}

package agent

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The reasons of Events.
const (
	reasonStarted       = "ShutdownStarted"
	reasonCompleted     = "ShutdownCompleted"
	reasonForced        = "ShutdownForced"
	reasonInvalid       = "InvalidGracePeriod"
	reasonShortened     = "GraceShortened"
	reasonDestroyFailed = "DestroyFailed"
	reasonPodTooShort   = "PodGraceTooShort"
)

// report tells once per shutdown.
func (k *keeper) report(reason string, warning bool, message string) {
	k.reportAs(reason, strconv.FormatInt(k.rec.Shutdown.StartedAt.UnixMilli(), 10), warning, message)
}

// reportAs tells once per key. It returns false where that was done before.
func (k *keeper) reportAs(reason, key string, warning bool, message string) bool {
	uid, _ := k.obs.Identity(&k.rec)
	if k.cfg.Cluster == nil || uid == "" || k.reported[reason+key] {
		return false
	}
	k.reported[reason+key] = true
	k.cfg.Cluster.Report(Event{
		Namespace: k.namespace, Name: k.name, UID: uid,
		Reason: reason, Message: message, Warning: warning, Key: key, At: k.cfg.Clock.Wall().UTC(),
	})
	return true
}

// settle is called before a record is let go of: until then an agent that dies
// leaves its reports to the next one.
func (k *keeper) settle(ctx context.Context) {
	if k.cfg.Cluster != nil {
		ctx, cancel := bounded(ctx, settleTimeout)
		defer cancel()
		k.cfg.Cluster.Settle(ctx, k.namespace, k.name)
	}
}

// reportStart is called when the shutdown is durable, or cannot be.
func (k *keeper) reportStart() {
	if s := &k.rec.Shutdown; k.rec.ShuttingDown() {
		text := fmt.Sprintf("%s: the guest is asked to shut down and has until %s (grace period %s, stated by: %s)",
			s.Cause, s.DeadlineAt.Format(time.RFC3339), k.rec.Period.Length, k.rec.Period.Source)
		if s.DryRun {
			text += "; dry run: nothing is done"
		}
		k.report(reasonStarted, false, text)
	}
}

func (k *keeper) reportEnd(d grace.Decision, took time.Duration, message string) {
	reason := reasonCompleted
	if d.Outcome == grace.Forced {
		reason = reasonForced
	}
	text := fmt.Sprintf("%s: %s after %s", d.Cause, d.Outcome, took.Round(time.Millisecond))
	if message != "" {
		text += ", " + message
	}
	k.report(reason, d.Outcome == grace.Forced, text)
}

func (k *keeper) invalidPeriod(source grace.Source, text string) {
	if source == grace.SourceVMI {
		k.reportAs(reasonInvalid, text, true, fmt.Sprintf("terminationGracePeriodSeconds %.64q is invalid; the next source or the default is used", text))
	}
}

// later has something logged once the write that it leads to is under way: a
// line takes a tenth of a millisecond, which a guest need not wait for.
func (k *keeper) later(words func()) { k.words = append(k.words, words) }

func (k *keeper) speak() {
	for _, say := range k.words {
		say()
	}
	k.words = nil
}

package grace

import "time"

// The rules up to the point where a shutdown is under way and durable.

func adopt(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if o.Recorded || o.Domain != domainPresent || !o.ours() || !o.Looked || o.arriving() {
		return next()
	}
	return do(Adopt)
}

// arriving reports whether the guest may still run elsewhere. While the migrations are
// unknown, a paused guest counts as arriving.
func (o *observation) arriving() bool {
	return o.Migration == MigrationIncoming || o.Migration == MigrationUnknown && o.Power == PowerPaused
}

// ours reports whether the VMI or its launcher is on this node. A launcher that its VMI
// left behind counts only with a trigger.
func (o *observation) ours() bool {
	v := o.Owner.current()
	return v.visible() || o.Dir.Present && (o.Trigger || !o.Owner.leftBehind())
}

// pendingLeast is how long a trigger waits for its domain at least, however short the
// grace period is. A launcher may need so long to restart in place, or QEMU to appear.
const pendingLeast = 30 * time.Second

// pendingUntil returns until when a trigger waits for its domain: one grace period from
// its appearance or from the end of its shim.
func (o *observation) pendingUntil() Mono {
	since := o.TriggerAt
	if o.Shim != shimAlive {
		since = max(since, o.ShimEndedAt)
	}
	return since.Add(max(o.Period.Length, pendingLeast))
}

func orphanTrigger(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	orphan := o.Told || o.TriggerByShim && (o.Shim == shimOrphan || o.Shim == shimDied)
	if o.Recorded || o.Domain != domainAbsent || !o.Trigger || !orphan || o.Shim == shimAlive || now < o.pendingUntil() {
		return next()
	}
	return Decision{Do: ClearTrigger, Trigger: o.TriggerID}, true
}

// nothingCame tells the launcher that it may end. If it lives on, its trigger stays for a
// domain that comes later.
func nothingCame(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if o.Recorded || o.Domain != domainAbsent || !o.Trigger {
		return next()
	}
	if o.Told && o.Shim == shimAlive {
		return waitUntil(Never)
	}
	switch end := o.pendingUntil(); {
	case now < end:
		return waitUntil(end)
	case o.Look.Running:
		return waitUntil(Never)
	case o.Look.Last < end: // an event may have been lost
		return do(Look)
	}
	return Decision{Do: Finish, Cause: LauncherSignal, Outcome: AlreadyStopped}, true
}

func noVM(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if o.Recorded {
		return next()
	}
	return waitUntil(Never)
}

func rebooted(r *Record, _ *observation, p *Policy, _ Mono) (Decision, bool) {
	switch {
	case r.BootID == p.BootID:
		return next()
	case r.ShuttingDown():
		return Decision{Do: Finish, Cause: r.Shutdown.Cause, Outcome: Lost}, true
	default:
		return do(Forget)
	}
}

func dropDryRun(r *Record, _ *observation, p *Policy, _ Mono) (Decision, bool) {
	if !r.ShuttingDown() || !r.Shutdown.DryRun || p.DryRun {
		return next()
	}
	return do(DropDryRun)
}

func explain(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !o.Gone || o.End != EndUnknown || r.Shutdown.Signalled && r.Shutdown.Over == "" || r.Shutdown.Over == Crashed {
		return next()
	}
	over := o.GoneAt.Add(explainTimeout)
	if now >= over {
		return next()
	}
	if o.Explain.Running {
		return waitUntil(over)
	}
	if o.Explain.Tries > 0 {
		if again := o.Explain.Last.Add(explainRetry); now < again {
			return waitUntil(min(again, over))
		}
	}
	return do(Explain)
}

func stopped(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !o.Gone {
		return next()
	}
	// A restarted agent may see the end before it sees the trigger.
	if over := o.GoneAt.Add(lookTimeout); !r.ShuttingDown() && !o.Looked && now < over {
		return waitUntil(over)
	}
	// The migration shows a moment later whether the guest has moved. An agent that has just started
	// does not know of it yet.
	open := o.Migration == MigrationOutgoing || o.Migration == MigrationUnknown && o.End != EndGuest
	if over := o.GoneAt.Add(movedTimeout); open && !o.End.GoesOn() && !r.ShuttingDown() && now < over {
		return waitUntil(over)
	}
	if r.ShuttingDown() && !o.Announced {
		return do(Announce) // the Event of the begin comes before that of the end
	}
	cause, outcome := howEnded(r, o)
	return Decision{Do: Finish, Cause: cause, Outcome: outcome}, true
}

// howEnded returns the cause and the outcome for an instance that is gone.
func howEnded(r *Record, o *observation) (Cause, Outcome) {
	outcome := outcome(r, o)
	switch held := r.Hold.UnderWay(); {
	case r.ShuttingDown():
		return r.Shutdown.Cause, outcome
	case held && outcome == Migrated:
		return r.Hold.Reason, outcome
	case held || o.Trigger:
		return LauncherSignal, AlreadyStopped
	default:
		return "", outcome
	}
}

// outcome returns how a gone instance has ended.
func outcome(r *Record, o *observation) Outcome {
	end := endOf(r, o)
	switch {
	case r.Shutdown.Over == "" && (r.Shutdown.Signalled || killedByAgent(r, o)):
		return Forced
	case end == EndMoved && o.Migration != MigrationNone:
		return Migrated
	case end != EndGuest:
		return Lost
	case r.Shutdown.Requested || o.AskACPI.Running || o.AskAgent.Running:
		return Graceful // the end may be seen before the request's answer
	case o.Restored && !r.Shutdown.DryRun:
		return Graceful // the agent before this one may have asked, and died before its note
	default:
		return AlreadyStopped
	}
}

// killedByAgent covers an agent that was killed right after its signal, before its note.
func killedByAgent(r *Record, o *observation) bool {
	s := &r.Shutdown
	return o.End == EndKilled && r.ShuttingDown() && !s.DryRun && o.GoneAt >= s.Deadline
}

func begin(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if r.ShuttingDown() || now < holdUntil(r, o) {
		return next()
	}
	if _, held := o.holds(r, now); held {
		return next()
	}
	// The grace period starts now: the hold does not count.
	if r.Hold.UnderWay() {
		return Decision{Do: Begin, Cause: LauncherSignal, When: now}, true
	}
	deletedAt, deleted := o.Owner.deleted(r)
	switch {
	case o.nodeBegins(r, now):
		return Decision{Do: Begin, Cause: NodeShutdown, When: now}, true
	case deleted && (!o.Trigger || deletedAt < o.TriggerAt):
		return Decision{Do: Begin, Cause: VMIDeleted, When: min(deletedAt, now)}, true
	// A trigger was written by a shim that still lived, so it came first.
	case o.Trigger:
		return Decision{Do: Begin, Cause: LauncherSignal, When: min(o.TriggerAt, now)}, true
	case o.Shim == shimDied && !o.Node.Kept:
		return Decision{Do: Begin, Cause: LauncherDied, When: min(o.DiedAt, now)}, true
	default:
		return next()
	}
}

// holdUntil returns until when the grace period may be unknown.
func holdUntil(r *Record, o *observation) Mono {
	if o.Owner.Shown.State != VMIUnknown || !r.VMICreated.IsZero() {
		return 0
	}
	return o.OwnerBy
}

func launcherDied(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !r.ShuttingDown() || o.Shim != shimDied || o.nodeEndedLauncher(r) || r.Shutdown.Deadline <= now {
		return next()
	}
	return Decision{Do: Shorten, Cause: LauncherDied, When: now}, true
}

func refresh(r *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if r.ShuttingDown() || !o.Looked {
		return next()
	}
	uid, created := o.Owner.toRecord(r)
	shim := o.shimToRecord(r)
	same := r.Period == o.Period && uid == r.UID && created.Equal(r.VMICreated) && (o.Pod.UID == "" || o.Pod.UID == r.Pod) && r.Holdable == o.holdable(r) &&
		r.Moving == o.moving(r) && shim == r.Launcher
	if same {
		return next()
	}
	return do(Refresh)
}

func identify(r *Record, o *observation, p *Policy, _ Mono) (Decision, bool) {
	if o.Domain != domainPresent || !r.identifiedBy(o.Instance, o.asleep(p)) {
		return next()
	}
	return do(Identify)
}

func save(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if now < o.saveAt() {
		return next()
	}
	return Decision{Do: Save, MayWait: o.Unsaved && !o.Urgent}, true
}

func running(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if r.ShuttingDown() {
		return next()
	}
	at := min(o.saveAt(), o.confirmAt(r), o.holdEnds(r))
	if turn := o.nodeTurn(); turn > now {
		at = min(at, turn)
	}
	if hold := holdUntil(r, o); now < hold {
		at = min(at, hold)
	}
	return waitUntil(at)
}

// saveAt returns when to save the record; Never if it need not be saved now.
func (o *observation) saveAt() Mono {
	switch {
	case o.Save.Running || !o.Unsaved && o.NotedAt == 0:
		return Never
	case o.Save.Failed:
		return o.Save.Last.Add(saveRetry)
	case o.Unsaved && o.Urgent || o.Unsaved && o.Save.Tries == 0:
		return 0
	case o.Unsaved:
		return max(o.Save.Last.Add(saveEvery), o.SaveAfter)
	default:
		return o.NotedAt.Add(noteDelay)
	}
}

func saveFirst(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !o.Unsaved || !o.Save.Running || o.Save.Failed || r.Shutdown.Requested || r.Shutdown.Signalled {
		return next()
	}
	over := o.Save.Last.Add(saveTimeout)
	if now >= r.Shutdown.Deadline {
		over = max(o.Save.Last, r.Shutdown.Deadline).Add(saveDeadlineTimeout)
	} else {
		over = min(over, r.Shutdown.Deadline)
	}
	if now >= over {
		return next()
	}
	return waitUntil(over)
}

func dryRun(r *Record, _ *observation, p *Policy, now Mono) (Decision, bool) {
	if !p.DryRun {
		return next()
	}
	if now < r.Shutdown.Deadline {
		return waitUntil(r.Shutdown.Deadline)
	}
	return waitUntil(Never)
}

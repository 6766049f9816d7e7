package grace

// Action is the one thing to do now.
type Action string

// The actions.
const (
	Wait         Action = "wait"          // until Decision.At, or until something changes
	Adopt        Action = "adopt"         // make a record for the instance that is present
	Refresh      Action = "refresh"       // take over identity, grace period and launcher into the record
	Identify     Action = "identify"      // take over the process of the record's instance
	Begin        Action = "begin"         // start the grace period
	HoldShutdown Action = "hold"          // let the shutdown wait for the VM to be moved
	Shorten      Action = "shorten"       // move the deadline forward
	Save         Action = "save"          // make the record durable
	Ask          Action = "ask"           // request a shutdown
	Resume       Action = "resume"        // let a paused or suspended guest run
	Terminate    Action = "terminate"     // SIGTERM to QEMU
	Kill         Action = "kill"          // SIGKILL to QEMU
	Destroy      Action = "destroy"       // have libvirt destroy the domain
	Explain      Action = "explain"       // find out why the instance ended
	Confirm      Action = "confirm"       // ask the API server what became of the VMI
	Look         Action = "look"          // look at the domain again
	ReportFailed Action = "report-failed" // say that QEMU cannot be killed
	Finish       Action = "finish"        // report the end; Answer, FlushEvents and Reset follow
	Forget       Action = "forget"        // drop the record; there was no shutdown
	DropDryRun   Action = "drop-dry-run"  // drop the shutdown, which was a dry run's; the record stays
	ClearTrigger Action = "clear-trigger" // remove a trigger that belongs to no VM here
	Follow       Action = "follow"        // look at another pod's launcher directory from now on
	Watch        Action = "watch"         // open the process of the record's instance
	Inspect      Action = "inspect"       // look whether the process is exiting

	Answer      Action = "answer"       // write the final status.json, remove the trigger
	FlushEvents Action = "flush-events" // wait for the Events that were reported
	Reset       Action = "reset"        // make ready for the next instance

	LookDirectory Action = "look-directory" // look at the launcher directory
	Announce      Action = "announce"       // report that a shutdown has begun
	WriteStatus   Action = "write-status"   // write status.json
	Remove        Action = "remove"         // remove the record of an instance that ended
	RejectPeriod  Action = "reject-period"  // report an invalid grace period
	WarnOfPod     Action = "warn-of-pod"    // report that a pod will not live long enough
	WarnOfSave    Action = "warn-of-save"   // report that the deadline cuts a save
)

// Decision is what to do now and when to look again.
type Decision struct {
	Rule string // the rule that decided, as it is logged
	Do   Action
	// At is when to look again, for Wait. Never: only when something changes.
	At      Mono
	MayWait bool      // for Save: no shutdown depends on it yet, see SaveLater
	Mode    Mode      // for Ask
	Cause   Cause     // for Begin, HoldShutdown and Finish; for Shorten LauncherDied, NodeShutdown, NodeFenced, or none for a pod's kill
	When    Mono      // for Begin and HoldShutdown the start; for Shorten the new deadline
	Outcome Outcome   // for Finish
	Hold    Hold      // for HoldShutdown
	Trigger TriggerID // for ClearTrigger
	Source  Source    // for RejectPeriod: who stated Text
	Text    string
}

// rule is one line of a table. It applies if decide returns true.
type rule struct {
	name   string
	why    string
	decide func(r *Record, o *observation, p *Policy, now Mono) (Decision, bool)
}

// rules is read from top to bottom; the first that applies decides. A comment says why a
// rule stands before the next ones; without one no test fails where it and the next rule
// change places.
var rules = [...]rule{
	{"follow", "the launcher pod has changed: what was seen in the former pod's directory says nothing", follow},
	{"leftover-trigger", "a trigger that names another VM is removed", leftoverTrigger},
	// answer: before flush-events: the launcher must not wait for the API server to hear its end.
	{"answer", "write the final status.json, then remove the trigger", answer},
	{"flush-events", "wait until the API server has the Events: until then a restarted agent needs the record to report them", flushEvents},
	// moving: before reset: a record that is gone tells the other node nothing after a restart.
	{"moving", "wait until the other node has been told that the guest has left: until then a restarted agent needs the record to tell it", moving},
	{"reset", "the end is reported: make ready for the next instance", reset},
	{"adopt", "one of our domains runs without a record: record its grace period while it can still be read", adopt},
	// orphan-trigger: before nothing-came: nobody is there to be told Stopped, and the trigger would stay.
	{"orphan-trigger", "no domain came in time, and the shim that wrote the trigger has ended: remove the trigger", orphanTrigger},
	// nothing-came: before no-vm, which waits for ever.
	{"nothing-came", "there was no domain for a whole grace period after the trigger, 30 s at least: report the VM as stopped", nothingCame},
	// no-vm: before rebooted and all that follows: they read a record.
	{"no-vm", "no record, no domain: nothing to guard", noVM},
	{"rebooted", "the record is of another boot: its QEMU is gone, and its deadline means nothing", rebooted},
	{"watch", "open a pidfd: it shows the end of the process and is what is signalled", watch},
	{"drop-dry-run", "the shutdown was a dry run: drop it and decide anew", dropDryRun},
	// explain: before stopped: the outcome depends on why the instance ended.
	{"explain", "the instance is gone: ask libvirt why, which decides the outcome", explain},
	{"stopped", "QEMU is gone: report the outcome", stopped},
	{"confirm", "a missing VMI is no proof of a deletion, nor is one shown before the domain was there: ask the API server", confirm},
	{"moved", "the VMI has moved to another node: forget it here", moved},
	{"identify", "the QEMU process is identified now: record it, so that it can be watched and signalled", identify},
	// refresh: before hold-shutdown and begin: a shutdown freezes the grace period in the record.
	{"refresh", "before the shutdown starts, changes of identity and grace period are recorded", refresh},
	// node-fenced: before hold-shutdown and begin, which give a grace period.
	{"node-fenced", "the VM was moved away while this node was fenced: the deadline is now", nodeFenced},
	{"hold-shutdown", "the launcher pod is deleted for a reason that moves its VM: the shutdown waits for that", holdShutdown},
	{"begin", "the first cause starts the one grace period", begin},
	{"node-ends", "the node goes down before the deadline: the deadline moves to where QEMU still has its destroy timeout", nodeEnds},
	{"launcher-died", "the shim was killed: the deadline moves to now, unless the node was shutting down", launcherDied},
	{"pod-killed", "kubelet kills the launcher before the deadline: the deadline moves to 2 s before that", podKilled},
	// inspect: before save: what it notes is saved with the shutdown, not after it.
	{"inspect", "look whether the process is exiting by itself: what is sent to it then does not make its end Forced", inspect},
	// save: before running, and before all requests: persist, then act.
	{"save", "the record has changed: write it before acting", save},
	// running: before save-first and all that follows: they belong to a shutdown.
	{"running", "there is no cause for a shutdown", running},
	// save-first: before dry-run: a dry run is durable, too.
	{"save-first", "no request before the record is durable, unless the disk takes too long", saveFirst},
	// dry-run: before look and all that acts.
	{"dry-run", "a dry run sends no request and no signal", dryRun},
	// look: before deadline: a guest that is seen off in time is not Forced.
	{"look", "events get lost: look at the domain again each retry interval", look},
	// deadline: before destroy-timeout: SIGKILL follows SIGTERM.
	{"deadline", "the deadline has passed, or the guest is off or has crashed and nobody else ends QEMU: SIGTERM to QEMU", deadline},
	{"destroy-timeout", "QEMU is still there after the destroy timeout: SIGKILL", destroyTimeout},
	{"destroy", "the process cannot be signalled, or survives SIGKILL: have libvirt destroy the domain", destroyByLibvirt},
	// destroy-failed: before destroying, which waits.
	{"destroy-failed", "report that QEMU survived SIGKILL", destroyFailed},
	// destroying: before guest-off and the requests: after the deadline nothing is asked.
	{"destroying", "wait for QEMU to exit", destroying},
	{"guest-off", "the guest has powered off, or hibernates: libvirt ends QEMU", guestOff},
	{"resume", "the guest is paused by a user or suspended: resume it, so that it can react to a request", resume},
	{"do-not-resume", "the guest is paused by an I/O error or a migration: look again", doNotResume},
	{"ask-agent", "a guest agent is connected: it is asked first, and again where it connects anew or has refused", askAgent},
	// agent-answers: before ask: ACPI waits for the guest agent.
	{"agent-answers", "a guest agent gets a bounded time before ACPI is used", agentAnswers},
	// ask: before waiting, which waits.
	{"ask", "press the ACPI power button, again each retry interval: a booting guest misses the first", ask},
	{"waiting", "the guest was asked: wait until the deadline", waiting},
}

// background lists what may be due whenever rules wait. They are tried in order.
var background = [...]rule{
	{"look-at-launcher", "the directory may have changed", lookAtDirectory},
	{"look-at-domain", "the domain may have changed", lookAtDomain},
	{"announce", "report that the shutdown has begun, once the record is durable", announce},
	{"write-status", "status.json is not up to date: write it", writeStatus},
	{"invalid-period", "an invalid grace period is reported once, and counts as not stated", invalidPeriod},
	{"save-cut", "the VM is being saved, and its deadline comes soon: report it", saveCut},
	{"pod-too-short", "a launcher pod's grace period is shorter than the VM's: report it", podTooShort},
	{"remove-record", "the VM has stopped: remove its record", removeRecord},
}

// decide returns what to do about one VM. The result depends on the arguments alone.
// After anything but Wait, call it again at once.
func decide(r *Record, o *observation, p *Policy, now Mono) Decision {
	for i := range rules {
		if d, yes := rules[i].decide(r, o, p, now); yes {
			d.Rule = rules[i].name
			return d
		}
	}
	// Unreachable: "waiting" always applies. Looking again is harmless.
	return Decision{Do: Wait, At: now.Add(saveRetry)}
}

func do(a Action) (Decision, bool)       { return Decision{Do: a}, true }
func waitUntil(at Mono) (Decision, bool) { return Decision{Do: Wait, At: at}, true }
func next() (Decision, bool)             { return Decision{}, false }

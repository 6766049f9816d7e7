package grace

import "slices"

// Action is the one thing to do now.
type Action string

// The actions.
const (
	Wait         Action = "wait"          // until Decision.At, or until something changes
	Adopt        Action = "adopt"         // make a record for the instance that is present
	Refresh      Action = "refresh"       // take over identity, grace period and launcher into the record
	Identify     Action = "identify"      // take over the process of the record's instance
	Begin        Action = "begin"         // start the grace period
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
	Finish       Action = "finish"        // report the end; Answer, Settle and LetGo follow
	Forget       Action = "forget"        // drop the record; there was no shutdown
	DropDryRun   Action = "drop-dry-run"  // drop the shutdown, which was a dry run's; the record stays
	ClearTrigger Action = "clear-trigger" // remove a trigger that concerns nobody
	Follow       Action = "follow"        // look at another pod's launcher directory from now on
	Watch        Action = "watch"         // open the process of the record's instance

	Answer Action = "answer" // write the final status.json, remove the trigger
	Settle Action = "settle" // wait for the Events that were reported
	LetGo  Action = "let-go" // make ready for the next instance

	LookDirectory Action = "look-directory" // look at the launcher directory
	Announce      Action = "announce"       // report that a shutdown has begun
	Tell          Action = "tell"           // write status.json
	Remove        Action = "remove"         // the record of an instance that ended
	RejectPeriod  Action = "reject-period"  // report an invalid grace period
	WarnOfPod     Action = "warn-of-pod"    // report that a pod will not live long enough
)

// Decision is what to do now and when to look again.
type Decision struct {
	Rule string // the rule that decided; also the word in the log
	Do   Action
	// At is when to look again, for Wait. Never: only when something changes.
	At      Mono
	Mode    Mode      // for Ask
	Cause   Cause     // for Begin and Finish; for Shorten LauncherDied, or none for a pod's kill
	When    Mono      // for Begin its start; for Shorten the new deadline
	Outcome Outcome   // for Finish
	Trigger TriggerID // for ClearTrigger
	Source  Source    // for RejectPeriod: who stated Text
	Text    string
}

// rule is one line of the table: where decide says yes, it decides.
type rule struct {
	name   string
	why    string
	decide func(r *Record, o *Observation, p *Policy, now Mono) (Decision, bool)
}

// Rules returns name and reason of each rule, in order.
func Rules() [][2]string {
	out := make([][2]string, 0, len(rules))
	for _, r := range slices.Concat(rules[:], beside[:]) {
		out = append(out, [2]string{r.name, r.why})
	}
	return out
}

// rules is read from top to bottom; the first that applies decides.
var rules = [...]rule{
	{"follow", "another pod is the launcher: what was seen was another directory's", follow},
	{"leftover-trigger", "a trigger that names another VM is a leftover", leftoverTrigger},
	{"answer", "the launcher waits for the last status.json; then its trigger goes", answer},
	{"settle", "until Events survive the agent, its successor needs the record to report them", settle},
	{"let-go", "all is told: the next instance may come", letGo},
	{"adopt", "a domain of ours runs and there is no record: remember its grace period while somebody can state it", adopt},
	{"orphan-trigger", "a shim's trigger without domain ends with its shim", orphanTrigger},
	{"nothing-came", "a trigger waits for its domain for one grace period, then its shim may go", nothingCame},
	{"no-vm", "no record, no domain: nothing to guard", noVM},
	{"rebooted", "another boot id: that QEMU is gone, and so is the meaning of its deadline", rebooted},
	{"watch", "a handle on the process is what tells of its end, and what signals it", watch},
	{"vanished", "it ended while it was adopted: nothing was there to guard", vanished},
	{"drop-dry-run", "a dry run's deadline binds nobody: a real agent starts over", dropDryRun},
	{"explain", "the instance is gone: how it ended decides the outcome", explain},
	{"stopped", "QEMU is gone: report it, then let go", stopped},
	{"confirm", "a VMI that is missing is no proof, nor is one that was shown before the domain was there: ask", confirm},
	{"moved", "the VMI is on another node now: its VM is not ours to shut down", moved},
	{"identify", "a process that was unknown is known now: it can be watched and signalled", identify},
	{"refresh", "until the shutdown starts, changes of identity and grace period count", refresh},
	{"begin", "the first cause starts the one grace period", begin},
	{"launcher-died", "a shim that was killed takes its VM with it, also in mid-grace", launcherDied},
	{"pod-killed", "kubelet kills the launcher before the deadline: the guest gets what is left, less a margin", podKilled},
	{"save", "persist, then act", save},
	{"running", "nobody wants this VM to end", running},
	{"save-first", "the guest hears nothing before the record is durable, unless the disk takes too long", saveFirst},
	{"dry-run", "a dry run only says what it would do", dryRun},
	{"look", "events get lost: look at a domain that should be ending each interval", look},
	{"deadline", "the grace period is over: SIGTERM to QEMU", deadline},
	{"destroy-timeout", "QEMU had its time to flush and exit: SIGKILL", destroyTimeout},
	{"destroy", "the process cannot be signalled or does not die: libvirt may know better", destroyByLibvirt},
	{"destroy-failed", "report that QEMU survived SIGKILL", destroyFailed},
	{"destroying", "signalled: wait for QEMU to go", destroying},
	{"guest-off", "the guest is off already: libvirt ends QEMU", guestOff},
	{"resume", "a guest that was paused by a user cannot hear a request", resume},
	{"held", "paused by an I/O error or a migration: not ours to resume, looked at again", held},
	{"ask-agent", "the guest agent is the surest way where it answers", askAgent},
	{"agent-answers", "a guest agent gets a bounded time before ACPI is used", agentAnswers},
	{"ask", "press the power button, again each interval: a booting guest misses the first", ask},
	{"waiting", "asked: the guest has until the deadline", waiting},
}

// beside is what is due whenever the rules wait: each that applies, in turn.
var beside = [...]rule{
	{"look-at-launcher", "the directory may have changed", lookAtDirectory},
	{"look-at-domain", "the domain may have changed", lookAtDomain},
	{"announce", "users hear that a shutdown has begun once it is durable", announce},
	{"invalid-period", "an invalid grace period is reported once, and counts as not stated", invalidPeriod},
	{"pod-too-short", "a launcher pod that would be killed too early is reported early", podTooShort},
	{"remove-record", "a stopped VM has no record", removeRecord},
}

// Decide says what to do about one VM. It is a function of its arguments
// alone. After anything but Wait it is to be asked again at once.
func Decide(r *Record, o *Observation, p *Policy, now Mono) Decision {
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

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
	Finish       Action = "finish"        // report the end, remove trigger and record
	Forget       Action = "forget"        // drop the record; there was no shutdown
	Leave        Action = "leave"         // drop the shutdown, which was a dry run's; the record stays
	ClearTrigger Action = "clear-trigger" // remove a trigger that concerns nobody
)

// Decision is what to do now and when to look again.
type Decision struct {
	Rule string // the rule that decided; also the word in the log
	Do   Action
	// At is when to look again, for Wait. Never: only when something changes.
	At      Mono
	Mode    Mode    // for Ask
	Cause   Cause   // for Begin and Finish; for Shorten LauncherDied, or none for a pod's kill
	When    Mono    // for Begin its start; for Shorten the new deadline
	Outcome Outcome // for Finish
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
	for _, r := range rules {
		out = append(out, [2]string{r.name, r.why})
	}
	return out
}

// rules is read from top to bottom; the first that applies decides.
var rules = [...]rule{
	{"adopt", "a domain of ours runs and there is no record: remember its grace period while somebody can state it", adopt},
	{"orphan-trigger", "a shim's trigger without domain ends with its shim", orphanTrigger},
	{"nothing-came", "a trigger waits for its domain for one grace period, then its shim may go", nothingCame},
	{"no-vm", "no record, no domain: nothing to guard", noVM},
	{"rebooted", "another boot id: that QEMU is gone, and so is the meaning of its deadline", rebooted},
	{"leave-dry-run", "a dry run's deadline binds nobody: a real agent starts over", leaveDryRun},
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
	{"destroy-failed", "a QEMU that cannot be killed is somebody's to know", destroyFailed},
	{"destroying", "signalled: wait for QEMU to go", destroying},
	{"guest-off", "the guest is off already: libvirt ends QEMU", guestOff},
	{"resume", "a guest that was paused by a user cannot hear a request", resume},
	{"held", "paused by an I/O error or a migration: not ours to resume, looked at again", held},
	{"ask-agent", "the guest agent is the surest way where it answers", askAgent},
	{"agent-answers", "a guest agent gets a bounded time before ACPI is used", agentAnswers},
	{"ask", "press the power button, again each interval: a booting guest misses the first", ask},
	{"waiting", "asked: the guest has until the deadline", waiting},
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

package grace

import (
	"testing"
	"time"
)

const boot = "boot-1"

var policy = Policy{
	BootID: boot, RetryInterval: 5 * time.Second, AgentTimeout: 5 * time.Second,
	UseAgent: true, DestroyTimeout: 10 * time.Second,
}

const t0 = Mono(1000 * time.Second)

func at(s float64) Mono { return t0.Add(time.Duration(s * float64(time.Second))) }

// guarded returns a VM that is guarded and at rest.
func guarded(length time.Duration) (Record, observation) {
	i := Instance{UUID: "u1", PID: 42, Start: 7}
	p := Period{Length: length, Source: SourceLauncher}
	r := Record{Namespace: "ns", Name: "vm", UID: "uid", BootID: boot, Period: p, Instance: i}
	o := observation{Recorded: true, Looked: true, Dir: Directory{Present: true}, Domain: domainPresent, Instance: i, Power: PowerOn, Watched: true, OnDisk: true, DirAt: Never, LookAt: Never, Owner: owner{Claimed: "uid"}, Period: p}
	return r, o
}

// begun returns a VM whose 30 s grace period began at t0, saved, its domain looked at.
func begun(t *testing.T, length time.Duration) (Record, observation) {
	t.Helper()
	r, o := guarded(length)
	o.Trigger, o.TriggerAt = true, t0
	r.begin(LauncherSignal, t0, time.Unix(0, 0), false)
	o.Announced, o.Look = true, Call{Tries: 1, Last: t0}
	o.Inspect = Call{Tries: 1, Last: Never} // its result is a separate case
	return r, o
}

// unknown makes the process of the present domain unknown.
func unknown(r *Record, o *observation) {
	r.Instance = Instance{UUID: "u1"}
	o.Instance = r.Instance
}

func TestDecide(t *testing.T) {
	type given func(r *Record, o *observation, p *Policy)
	for _, c := range []struct {
		name  string
		begun bool
		given given
		now   Mono
		do    Action
		rule  string
		at    Mono
	}{
		{name: "nothing known", given: func(r *Record, o *observation, _ *Policy) { *r, *o = Record{}, observation{} }, do: Wait, rule: "no-vm", at: Never},
		{name: "a domain of ours appears", given: func(r *Record, o *observation, _ *Policy) { *r = Record{}; o.Recorded = false }, do: Adopt, rule: "adopt"},
		{name: "a domain without launcher directory", given: func(r *Record, o *observation, _ *Policy) { *r = Record{}; o.Recorded, o.Dir.Present = false, false }, do: Wait, rule: "no-vm", at: Never},
		{name: "a domain whose launcher was not looked at yet", given: func(r *Record, o *observation, _ *Policy) { *r = Record{}; o.Recorded, o.Looked = false, false }, do: Wait, rule: "no-vm", at: Never},
		{name: "at rest", do: Wait, rule: "running", at: Never},
		{name: "libvirt unknown is not gone", given: func(_ *Record, o *observation, _ *Policy) { o.Domain, o.Power = domainUnknown, PowerUnknown }, do: Wait, rule: "running", at: Never},
		{name: "domain absent but its process lives", given: func(_ *Record, o *observation, _ *Policy) { o.Domain = domainAbsent }, do: Wait, rule: "running", at: Never},
		{name: "the grace period was edited", given: func(_ *Record, o *observation, _ *Policy) { o.Period.Length = time.Minute }, do: Refresh, rule: "refresh"},
		{name: "trigger", given: func(_ *Record, o *observation, _ *Policy) { o.Trigger, o.TriggerAt = true, at(0) }, do: Begin, rule: "begin"},
		{name: "shim killed", given: func(_ *Record, o *observation, _ *Policy) { o.Shim = shimDied }, do: Begin, rule: "begin"},
		{name: "an unlocked vm.json nobody knows", given: func(_ *Record, o *observation, _ *Policy) { o.Shim = shimOrphan }, do: Wait, rule: "running", at: Never},
		{name: "another boot, running", given: func(r *Record, _ *observation, _ *Policy) { r.BootID = "other" }, do: Forget, rule: "rebooted"},

		{name: "unsaved", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Unsaved = true }, do: Save, rule: "save"},
		{name: "saving", begun: true, given: func(_ *Record, o *observation, _ *Policy) {
			o.Unsaved, o.Save = true, Call{Running: true, Tries: 1, Last: t0}
		}, do: Wait, rule: "save-first", at: t0.Add(saveTimeout)},
		{name: "saving takes too long", begun: true, now: t0.Add(saveTimeout), given: func(_ *Record, o *observation, _ *Policy) {
			o.Unsaved, o.Save = true, Call{Running: true, Tries: 1, Last: t0}
		}, do: Ask, rule: "ask"},
		{name: "saving failed", begun: true, given: func(_ *Record, o *observation, _ *Policy) {
			o.Unsaved, o.Save = true, Call{Failed: true, Tries: 1, Last: t0}
		}, do: Ask, rule: "ask"},
		{name: "saving failed a while ago", begun: true, now: t0.Add(saveRetry), given: func(_ *Record, o *observation, _ *Policy) {
			o.Unsaved, o.Save = true, Call{Failed: true, Tries: 1, Last: t0}
		}, do: Save, rule: "save"},
		{name: "first request", begun: true, do: Ask, rule: "ask"},
		{name: "guest agent first", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Agent = true }, do: Ask, rule: "ask-agent"},
		{name: "guest agent not wanted", begun: true, given: func(_ *Record, o *observation, p *Policy) { o.Agent, p.UseAgent = true, false }, do: Ask, rule: "ask"},
		{name: "guest agent silent", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.AskAgent = Call{Running: true, Tries: 1, Last: t0} }, do: Wait, rule: "agent-answers", at: at(5)},
		{name: "guest agent silent too long", begun: true, now: at(5), given: func(_ *Record, o *observation, _ *Policy) {
			o.AskAgent = Call{Running: true, Tries: 1, Last: t0}
			o.Look.Last = at(5)
		}, do: Ask, rule: "ask"},
		{name: "guest agent failed", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.AskAgent = Call{Failed: true, Tries: 1, Last: t0} }, do: Ask, rule: "ask"},
		{name: "asked", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.AskACPI = Call{Tries: 1, Last: t0} }, do: Wait, rule: "waiting", at: at(5)},
		{name: "asked an interval ago", begun: true, now: at(5), given: func(_ *Record, o *observation, _ *Policy) { o.AskACPI = Call{Tries: 1, Last: t0}; o.Look.Last = at(5) }, do: Ask, rule: "ask"},
		{name: "asking failed", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.AskACPI = Call{Failed: true, Tries: 1, Last: t0} }, do: Wait, rule: "waiting", at: t0.Add(failedRetry)},
		{name: "asking hangs", begun: true, now: at(20), given: func(_ *Record, o *observation, _ *Policy) {
			o.AskACPI = Call{Running: true, Tries: 1, Last: t0}
			o.Look = Call{Running: true, Tries: 1}
		}, do: Wait, rule: "waiting", at: at(30)},
		{name: "look again", begun: true, now: at(5), do: Look, rule: "look"},
		{name: "paused by a user", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Power = PowerPaused }, do: Resume, rule: "resume"},
		{name: "suspended", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Power = PowerSuspended }, do: Resume, rule: "resume"},
		{name: "paused by an I/O error", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Power = PowerPausedOther }, do: Wait, rule: "do-not-resume", at: at(5)},
		{name: "the guest is off", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Power = PowerEnding }, do: Wait, rule: "guest-off", at: at(5)},
		{name: "dry run", begun: true, given: func(r *Record, _ *observation, p *Policy) { p.DryRun, r.Shutdown.DryRun = true, true }, do: Wait, rule: "dry-run", at: at(30)},
		{name: "dry run past its deadline", begun: true, now: at(31), given: func(r *Record, _ *observation, p *Policy) { p.DryRun, r.Shutdown.DryRun = true, true }, do: Wait, rule: "dry-run", at: Never},
		{name: "a note waits", begun: true, now: at(1), given: func(_ *Record, o *observation, _ *Policy) {
			o.AskACPI, o.NotedAt = Call{Tries: 1, Last: t0}, at(1)
		}, do: Wait, rule: "waiting", at: at(1.5)},
		{name: "a note has waited", begun: true, now: at(2), given: func(_ *Record, o *observation, _ *Policy) {
			o.AskACPI, o.NotedAt = Call{Tries: 1, Last: t0}, at(1)
		}, do: Save, rule: "save"},
		{name: "the disk has refused a note", begun: true, now: at(2), given: func(_ *Record, o *observation, _ *Policy) {
			o.AskACPI = Call{Tries: 1, Last: t0}
			o.Unsaved, o.Save = true, Call{Failed: true, Tries: 1, Last: at(1.5)}
		}, do: Wait, rule: "waiting", at: at(2.5)},
		{name: "a dry run's record, for real", begun: true, now: at(31), given: func(r *Record, _ *observation, _ *Policy) { r.Shutdown.DryRun = true }, do: DropDryRun, rule: "drop-dry-run"},
		{name: "shim killed in mid-grace", begun: true, now: at(3), given: func(_ *Record, o *observation, _ *Policy) { o.Shim = shimDied }, do: Shorten, rule: "launcher-died"},
		{name: "another boot, in mid-grace", begun: true, given: func(r *Record, _ *observation, _ *Policy) { r.BootID = "other" }, do: Finish, rule: "rebooted"},

		{name: "a nanosecond before the deadline", begun: true, now: at(30) - 1, given: func(_ *Record, o *observation, _ *Policy) {
			o.AskACPI = Call{Running: true, Tries: 1}
			o.Look = Call{Running: true, Tries: 1}
		}, do: Wait, rule: "waiting", at: at(30)},
		{name: "the deadline", begun: true, now: at(30), given: func(_ *Record, o *observation, _ *Policy) { o.Look.Last = at(30) }, do: Terminate, rule: "deadline"},
		{name: "the deadline, paused", begun: true, now: at(30), given: func(_ *Record, o *observation, _ *Policy) { o.Power, o.Look.Last = PowerPausedOther, at(30) }, do: Terminate, rule: "deadline"},
		{name: "the deadline, with a disk that hangs", begun: true, now: at(30), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Unsaved, o.Save = at(30), true, Call{Running: true, Tries: 1, Last: t0}
		}, do: Wait, rule: "save-first", at: at(30).Add(saveDeadlineTimeout)},
		{name: "terminated", begun: true, now: at(31), given: func(_ *Record, o *observation, _ *Policy) { o.Look.Last, o.Term = at(31), Call{Tries: 1, Last: at(30)} }, do: Wait, rule: "destroying", at: at(36)},
		{name: "terminated long ago", begun: true, now: at(40), given: func(_ *Record, o *observation, _ *Policy) { o.Look.Last, o.Term = at(40), Call{Tries: 1, Last: at(30)} }, do: Kill, rule: "destroy-timeout"},
		{name: "killed, still there", begun: true, now: at(41), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Term, o.Kill = at(41), Call{Tries: 1, Last: at(30)}, Call{Tries: 1, Last: at(40)}
		}, do: Destroy, rule: "destroy"},
		{name: "cannot be signalled", begun: true, now: at(30), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Term = at(30), Call{Tries: 1, Failed: true, Last: at(30)}
		}, do: Destroy, rule: "destroy"},
		{name: "process unknown", begun: true, now: at(30), given: func(r *Record, o *observation, _ *Policy) { unknown(r, o); o.Look.Last = at(30) }, do: Destroy, rule: "destroy"},
		{name: "process known at last", begun: true, now: at(30), given: func(r *Record, _ *observation, _ *Policy) { r.Instance = Instance{UUID: "u1"} }, do: Identify, rule: "identify"},
		{name: "a process that started after the shutdown", begun: true, now: at(30), given: func(r *Record, o *observation, _ *Policy) {
			r.Instance, o.Instance.Start, o.Look.Last = Instance{UUID: "u1"}, uint64(at(1)/Mono(tick)), at(30)
		}, do: Destroy, rule: "destroy"},
		{name: "destroy hangs", begun: true, now: at(35), given: func(r *Record, o *observation, _ *Policy) {
			unknown(r, o)
			o.Look.Last, o.Destroy = at(35), Call{Running: true, Tries: 1, Last: at(30)}
		}, do: Wait, rule: "destroying", at: at(40)},
		{name: "cannot be killed", begun: true, now: at(70), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Term, o.Kill, o.Destroy = at(70), Call{Tries: 1, Last: at(30)}, Call{Tries: 9, Last: at(69)}, Call{Running: true, Tries: 1}
		}, do: ReportFailed, rule: "destroy-failed"},

		{name: "the process was not looked at", begun: true, given: func(_ *Record, o *observation, _ *Policy) { o.Inspect = Call{} }, do: Inspect, rule: "inspect"},
		{name: "right before the deadline", begun: true, now: at(30).Add(-inspectAhead), given: func(_ *Record, o *observation, _ *Policy) {
			o.Inspect, o.Look.Last = Call{Tries: 1, Last: t0}, at(29)
		}, do: Inspect, rule: "inspect"},
		{name: "right before the deadline, off already", begun: true, now: at(30).Add(-inspectAhead), given: func(r *Record, o *observation, _ *Policy) {
			r.Shutdown.Over, o.Power, o.Inspect, o.Look.Last = GuestOff, PowerEnding, Call{Tries: 1, Last: t0}, at(29)
		}, do: Wait, rule: "guest-off", at: at(30)},
		{name: "off, and nobody else ends its process", begun: true, now: at(3), given: func(_ *Record, o *observation, _ *Policy) {
			o.Power, o.OffAt, o.Look.Last = PowerOff, at(3), at(3)
		}, do: Terminate, rule: "deadline"},
		{name: "cannot be killed, is it exiting", begun: true, now: at(70), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Term, o.Kill, o.Destroy = at(70), Call{Tries: 1, Last: at(30)}, Call{Tries: 9, Last: at(69)}, Call{Running: true, Tries: 1}
			o.Inspect = Call{Tries: 2, Last: at(30)}
		}, do: Inspect, rule: "inspect"},
		{name: "cannot be killed, and is exiting", begun: true, now: at(70), given: func(_ *Record, o *observation, _ *Policy) {
			o.Look.Last, o.Term, o.Kill, o.Destroy = at(70), Call{Tries: 1, Last: at(30)}, Call{Tries: 9, Last: at(69)}, Call{Running: true, Tries: 1}
			o.Inspect, o.Exiting = Call{Tries: 3, Last: at(70)}, true
		}, do: Wait, rule: "destroying", at: at(75)},

		{name: "gone, and nobody knows why yet", begun: true, now: at(2), given: func(_ *Record, o *observation, _ *Policy) { o.Gone, o.GoneAt = true, at(2) }, do: Explain, rule: "explain"},
		{name: "gone, explaining", begun: true, now: at(2), given: func(_ *Record, o *observation, _ *Policy) {
			o.Gone, o.GoneAt, o.Explain = true, at(2), Call{Running: true, Tries: 1, Last: at(2)}
		}, do: Wait, rule: "explain", at: at(2).Add(explainTimeout)},
		{name: "gone before the launcher directory was looked at", now: at(2), given: func(_ *Record, o *observation, _ *Policy) {
			o.Gone, o.GoneAt, o.End, o.Looked = true, at(1), EndDestroyed, false
		}, do: Wait, rule: "stopped", at: at(1).Add(explainTimeout)},
		{name: "gone, and the launcher directory does not answer", now: at(1).Add(explainTimeout), given: func(_ *Record, o *observation, _ *Policy) {
			o.Gone, o.GoneAt, o.End, o.Looked = true, at(1), EndDestroyed, false
		}, do: Finish, rule: "stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, o := guarded(30 * time.Second)
			if c.begun {
				r, o = begun(t, 30*time.Second)
			}
			p := policy
			if c.given != nil {
				c.given(&r, &o, &p)
			}
			now := c.now
			if now == 0 {
				now = t0
			}
			d := decide(&r, &o, &p, now)
			if d.Do != c.do || d.Rule != c.rule {
				t.Fatalf("decided %s by rule %q; want %s by %q", d.Do, d.Rule, c.do, c.rule)
			}
			if d.Do == Wait && d.At != c.at {
				t.Fatalf("waits until t0+%v; want t0+%v", d.At.Sub(t0), c.at.Sub(t0))
			}
		})
	}
}

func TestPendingTriggerWaitsOneGracePeriodForItsDomain(t *testing.T) {
	given := func(shim shim) observation {
		return observation{Looked: true, Look: Call{Last: at(1000)}, Dir: Directory{Present: true}, Domain: domainAbsent, Trigger: true, TriggerByShim: true, TriggerAt: t0, Shim: shim, Period: Period{Length: 30 * time.Second}}
	}
	told := func(shim shim) observation { o := given(shim); o.Told = true; return o }
	short := func(seconds int, o observation) observation {
		o.Period.Length = time.Duration(seconds) * time.Second
		return o
	}
	lookedAt := func(seconds float64, o observation) observation { o.Look.Last = at(seconds); return o }
	endedAt := func(seconds float64, o observation) observation { o.ShimEndedAt = at(seconds); return o }
	for _, c := range []struct {
		name string
		o    observation
		now  Mono
		do   Action
	}{
		{"while its shim lives", given(shimAlive), at(29), Wait},
		{"without any shim", given(shimNone), at(29), Wait},
		{"after the grace period", given(shimAlive), at(30), Finish},
		{"after the grace period, not looked at since", lookedAt(29, given(shimAlive)), at(30), Look},
		{"after its launcher was told", told(shimAlive), at(1000), Wait},
		{"after its launcher was told and has ended", told(shimNone), at(30), ClearTrigger},
		{"soon after its shim was killed", given(shimDied), at(29), Wait},
		{"long after its shim was killed", given(shimDied), at(30), ClearTrigger},
		{"soon after the end of a shim that lived for long", endedAt(20, given(shimDied)), at(49), Wait},
		{"left by a shim that was killed earlier", given(shimOrphan), at(30), ClearTrigger},
		{"with a grace period of 0", short(0, given(shimAlive)), at(29), Wait},
		{"with a grace period of 0, without a shim", short(0, given(shimNone)), at(29), Wait},
		{"with a grace period of 0, after 30 s", short(0, given(shimNone)), at(30), Finish},
		{"with a long grace period", short(60, given(shimNone)), at(59), Wait},
	} {
		if d := decide(&Record{}, &c.o, &policy, c.now); d.Do != c.do {
			t.Errorf("%s: %s by %q, want %s", c.name, d.Do, d.Rule, c.do)
		}
	}
	unknown := given(shimAlive)
	unknown.Domain = domainUnknown
	if d := decide(&Record{}, &unknown, &policy, at(100)); d.Do != Wait {
		t.Errorf("libvirt cannot be asked: %s by %q, want to wait", d.Do, d.Rule)
	}
}

func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		name                 string
		end                  End
		requested, signalled bool
		want                 Outcome
	}{
		{"the guest powered off after a request", EndGuest, true, false, Graceful},
		{"the guest powered off before any request", EndGuest, false, false, AlreadyStopped},
		{"the agent signalled, whatever libvirt says", EndGuest, true, true, Forced},
		{"killed by nobody we know, before the deadline", EndKilled, true, false, Lost},
		{"somebody destroyed it", EndDestroyed, true, false, Lost},
		{"crashed", EndCrashed, true, false, Lost},
		{"migrated or saved", EndMoved, true, false, Lost},
		{"nobody knows", EndUnknown, true, false, Lost},
	} {
		r, o := begun(t, 30*time.Second)
		o.Gone, o.GoneAt, o.End = true, at(1), c.end
		r.Shutdown.Requested, r.Shutdown.Signalled = c.requested, c.signalled
		d := decide(&r, &o, &policy, at(20))
		if d.Do != Finish || d.Outcome != c.want || d.Cause != LauncherSignal {
			t.Errorf("%s: %s %s %s, want %s", c.name, d.Do, d.Cause, d.Outcome, c.want)
		}
	}
}

func TestAnAgentThatDiedRightAfterItsSignalIsKnownByTheTime(t *testing.T) {
	for _, c := range []struct {
		name string
		gone Mono
		dry  bool
		want Outcome
	}{
		{"after the deadline", at(30), false, Forced},
		{"before it", at(30) - 1, false, Lost},
		{"a dry run signals nobody", at(31), true, Lost},
	} {
		r, o := begun(t, 30*time.Second)
		o.Gone, o.GoneAt, o.End, r.Shutdown.DryRun = true, c.gone, EndKilled, c.dry
		p := policy
		p.DryRun = c.dry
		if d := decide(&r, &o, &p, at(40)); d.Do != Finish || d.Outcome != c.want {
			t.Errorf("%s: %s %s, want %s", c.name, d.Do, d.Outcome, c.want)
		}
	}
}

func TestAnAgentThatDiedRightAfterItsRequestIsBelievedToHaveAsked(t *testing.T) {
	for _, c := range []struct {
		name string
		end  End
		dry  bool
		want Outcome
	}{
		{"the guest powered off", EndGuest, false, Graceful},
		{"killed by nobody we know", EndKilled, false, Lost},
		{"a dry run asks nobody", EndGuest, true, AlreadyStopped},
	} {
		r, o := begun(t, 30*time.Second)
		o.Gone, o.GoneAt, o.End, o.Restored, r.Shutdown.DryRun = true, at(1), c.end, true, c.dry
		p := policy
		p.DryRun = c.dry
		if d := decide(&r, &o, &p, at(20)); d.Do != Finish || d.Outcome != c.want {
			t.Errorf("%s: %s %s, want %s", c.name, d.Do, d.Outcome, c.want)
		}
	}
}

func TestAnEndThatIsSeenBeforeTheRequestsAnswerIsGraceful(t *testing.T) {
	for _, running := range []func(*observation) *Call{
		func(o *observation) *Call { return &o.AskACPI }, func(o *observation) *Call { return &o.AskAgent },
	} {
		r, o := begun(t, 30*time.Second)
		o.Gone, o.GoneAt, o.End = true, at(1), EndGuest
		*running(&o) = Call{Running: true, Tries: 1, Last: t0}
		if d := decide(&r, &o, &policy, at(1)); d.Outcome != Graceful {
			t.Errorf("%s %s, want Graceful", d.Do, d.Outcome)
		}
	}
}

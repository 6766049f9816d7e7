package grace

import (
	"cmp"
	"fmt"
	"time"
)

// What can happen in a story, in the words of its lines.

var happenings = map[string]func(*stage){
	"end": func(*stage) {},
	"cluster": func(s *stage) {
		s.cluster, s.vmi, s.pod, s.launcher.uid = true, shownVMI("uid-1"), "pod-1", "uid-1"
		s.answer = FateHere
		s.restart()
	},
	"dry run": func(s *stage) { s.policy.DryRun = true; s.restart() },

	"the guest does not listen":           func(s *stage) { s.deaf = true },
	"the guest agent answers":             func(s *stage) { s.guestAgent = "answers" },
	"the guest agent hangs":               func(s *stage) { s.guestAgent = "hangs" },
	"QEMU cannot be killed":               func(s *stage) { s.unkillable = true },
	"QEMU's process cannot be identified": func(s *stage) { s.noProcess = true },
	"QEMU's process can be identified": func(s *stage) {
		s.noProcess = false
		s.instance.PID, s.instance.Start = 100+s.instances, uint64(s.instances)
	},
	"the disk is full": func(s *stage) { s.diskState = "full" },
	"the disk hangs":   func(s *stage) { s.diskState = "hangs" },
	"the disk works":   func(s *stage) { s.diskState = "" },

	"a domain appears": func(s *stage) {
		s.instances++
		s.instance, s.ended, s.end, s.power = Instance{UUID: fmt.Sprint("uuid-", s.instances), PID: 100 + s.instances, Start: uint64(s.instances)}, false, EndUnknown, PowerOn
		s.asked = false
		if s.noProcess {
			s.instance.PID, s.instance.Start = 0, 0
		}
	},
	"the guest powers off":          func(s *stage) { s.over(EndGuest) },
	"QEMU crashes":                  func(s *stage) { s.over(EndCrashed) },
	"somebody destroys the domain":  func(s *stage) { s.over(EndDestroyed) },
	"the domain is migrated away":   func(s *stage) { s.over(EndMoved) },
	"a user pauses the guest":       func(s *stage) { s.power = PowerPaused },
	"the guest suspends itself":     func(s *stage) { s.power = PowerSuspended },
	"an I/O error pauses the guest": func(s *stage) { s.power = PowerHeld },
	"the guest can write again":     func(s *stage) { s.power = PowerOn },
	"the launcher registers": func(s *stage) {
		s.shims++
		s.launcher = launcher{dir: true, uid: s.launcher.uid, shim: s.shims, alive: true}
		s.uid()
	},
	"the launcher registers beside it": func(s *stage) { s.shims++; s.launcher.shim, s.launcher.alive = s.shims, true; s.uid() },
	"the launcher is signalled":        func(s *stage) { s.trigger(s.launcher.uid) },
	"somebody touches the trigger":     func(s *stage) { s.trigger("") },
	"the launcher is killed":           func(s *stage) { s.launcher.alive = false },
	"the launcher ends in order":       func(s *stage) { s.launcher.shim, s.launcher.alive = 0, false },
	"the launcher directory appears":   func(s *stage) { s.launcher.dir = true },

	"the agent dies":                  func(s *stage) { s.down = true },
	"an agent starts":                 func(s *stage) { s.start() },
	"an agent starts without dry run": func(s *stage) { s.policy.DryRun = false; s.start() },
	"the machine boots": func(s *stage) {
		s.boots++
		s.policy.BootID = fmt.Sprint("boot-", s.boots)
		s.over(EndUnknown)
		s.instance = Instance{}
		s.launcher = launcher{}
	},
	"the VMI is being deleted":         func(s *stage) { s.vmi.State, s.vmi.DeletingAt = VMIDeleting, s.now },
	"the VMI is not shown any more":    func(s *stage) { s.vmi = VMI{State: VMIAbsent} },
	"the API server cannot be reached": func(s *stage) { s.apiDown = true },
	"the API server answers again":     func(s *stage) { s.apiDown = false },
}

var parameters = map[string]func(*stage, string){
	"grace period":                           func(s *stage, v string) { s.grace.Length = s.duration(v); s.restart() },
	"the guest needs, to shut down":          func(s *stage, v string) { s.off = s.duration(v) },
	"the VMI is shown":                       func(s *stage, v string) { s.vmi = shownVMI(v) },
	"a trigger is left that names":           func(s *stage, v string) { s.trigger(v) },
	"the API server, asked, says":            func(s *stage, v string) { s.answer = Fate(v) },
	"the pod is being deleted and killed in": func(s *stage, v string) { s.podKill = s.now.Add(s.duration(v)) },
	"the grace period is edited":             func(s *stage, v string) { s.grace.Length = s.duration(v) },
	"a launcher registers for": func(s *stage, v string) {
		s.launcher.uid = v
		happenings["the launcher registers"](s)
		s.pod = "pod-of-" + v
		s.podKill = Never
	},
}

func shownVMI(uid string) VMI {
	return VMI{State: VMIPresent, UID: uid, Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (s *stage) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *stage) uid() {
	if s.launcher.uid == "" {
		s.launcher.uid = "uid-1"
	}
}

func (s *stage) trigger(uid string) {
	s.launcher.dir = true
	s.launcher.triggers++
	s.launcher.trigger, s.launcher.triggerUID = true, uid
}

// over ends the instance that runs.
func (s *stage) over(e End) {
	if s.instance != (Instance{}) {
		s.ended, s.end = true, e
	}
}

// do carries out what the core has decided, and lets the world answer.
func (s *stage) do(d Decision) {
	say := func(format string, args ...any) { s.say("-", "%s [%s]", fmt.Sprintf(format, args...), d.Rule) }
	switch d.Do {
	case Adopt:
		s.agent.adopt(s.now)
		say("guard it: uid %q, grace period %v", s.agent.rec.UID, s.agent.rec.Period.Length)
	case Refresh:
		s.check(s.agent.rec.Refresh(&s.agent.obs, s.now))
		s.agent.obs.Unsaved = true
		say("take over: uid %q, grace period %v", s.agent.rec.UID, s.agent.rec.Period.Length)
	case Identify:
		s.check(s.agent.rec.Identify(s.agent.obs.Instance, s.now))
		s.agent.obs.Unsaved = true
		say("its process is %d", s.agent.rec.Instance.PID)
	case Begin:
		s.check(s.agent.rec.Begin(d.Cause, d.When, s.now, time.Unix(0, 0), s.policy.DryRun))
		s.agent.obs.Unsaved = true
		say("begin: %s at %s, deadline %s", d.Cause, s.clock(d.When), s.clock(s.agent.rec.Shutdown.Deadline))
	case Shorten:
		s.check(s.agent.rec.Shorten(d.When, s.now))
		s.agent.obs.Unsaved = true
		say("the deadline is %s now", s.clock(s.agent.rec.Shutdown.Deadline))
	case Leave:
		s.check(s.agent.rec.Leave(s.now))
		s.agent.obs.Unsaved = true
		say("drop the dry run's shutdown")
	case Save:
		say("save")
		s.save()
	case Look:
		s.call(&s.agent.obs.Look, nil, time.Millisecond, func() {})
		say("look at the domain")
	case Ask:
		say("ask by %s", d.Mode)
		s.ask(d.Mode)
	case Resume:
		say("resume the guest")
		s.call(&s.agent.obs.Resume, nil, time.Millisecond, func() { s.power = PowerOn })
	case Terminate:
		say("SIGTERM to %d", s.agent.rec.Instance.PID)
		s.signal(&s.agent.obs.Term, 50*time.Millisecond)
	case Kill:
		say("SIGKILL to %d", s.agent.rec.Instance.PID)
		s.signal(&s.agent.obs.Kill, time.Millisecond)
	case Destroy:
		say("libvirt's destroy")
		s.agent.rec.Shutdown.Signalled = true
		s.die(time.Second)
		s.call(&s.agent.obs.Destroy, nil, 40*time.Second, func() {})
	case ReportFailed:
		say("report that QEMU cannot be killed")
		s.agent.obs.Reported = true
	case Explain:
		say("ask libvirt why it ended")
		s.call(&s.agent.obs.Explain, nil, 100*time.Millisecond, func() { s.agent.obs.End = s.end })
	case Confirm:
		say("ask the API server about the VMI")
		s.confirm()
	case ClearTrigger:
		say("remove the trigger")
		s.launcher.trigger = false
		s.see()
	case Finish:
		say("report %s: %s, %s", Stopped, cmp.Or(d.Cause, "no shutdown"), d.Outcome)
		s.launcher.trigger = false
		s.letGo()
	case Forget:
		say("forget it")
		s.letGo()
	default:
		s.t.Fatalf("nobody does %s", d.Do)
	}
}

func (s *stage) check(err error) {
	if err != nil {
		s.t.Fatal(err)
	}
}

// call keeps the account of a call that takes this long.
func (s *stage) call(c *Call, fails *bool, takes time.Duration, then func()) {
	agent := s.agent
	c.Running, c.Last = true, s.now
	c.Tries++
	s.after(takes, func() {
		if s.agent == agent {
			c.Running, c.Failed = false, fails != nil && *fails
			then()
		}
	})
}

func (s *stage) save() {
	rec, agent, failed := s.agent.rec, s.agent, s.diskState == "full"
	takes := 5 * time.Millisecond
	if s.diskState == "hangs" {
		takes = time.Hour
	}
	agent.obs.NotedAt = 0
	s.call(&agent.obs.Save, &failed, takes, func() {
		if failed {
			s.say(".", "the record cannot be written")
			agent.obs.Unsaved = true
			return
		}
		s.say(".", "the record is on disk")
		s.disk, agent.obs.Unsaved = &rec, agent.rec != rec
	})
}

func (s *stage) ask(m Mode) {
	agent, c, takes := s.agent, &s.agent.obs.AskACPI, time.Millisecond
	if m == ModeAgent {
		c = &s.agent.obs.AskVM
		if s.guestAgent == "hangs" {
			takes = time.Hour
		}
	}
	s.call(c, nil, takes, func() {
		if !agent.rec.Shutdown.Requested {
			agent.rec.Shutdown.Requested = true
			agent.obs.NotedAt = s.now
		}
	})
	i := s.instance
	if takes < time.Hour && !s.deaf && s.power == PowerOn && !s.asked {
		s.asked = true
		s.after(s.off, func() {
			if s.instance == i && !s.ended {
				s.say(".", "the guest has powered off, QEMU is gone")
				s.over(EndGuest)
			}
		})
	}
}

func (s *stage) signal(c *Call, takes time.Duration) {
	c.Last = s.now
	c.Tries++
	if !s.agent.rec.Shutdown.Signalled {
		s.agent.rec.Shutdown.Signalled = true
		s.agent.obs.NotedAt = s.now
	}
	s.die(takes)
}

// die ends QEMU, where it can be killed.
func (s *stage) die(takes time.Duration) {
	i := s.instance
	if s.unkillable {
		return
	}
	s.after(takes, func() {
		if s.instance == i && !s.ended {
			s.say(".", "QEMU is gone")
			s.over(EndKilled)
		}
	})
}

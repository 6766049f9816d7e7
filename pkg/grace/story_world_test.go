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
		s.start()
	},
	"dry run": func(s *stage) { s.policy.DryRun = true; s.start() },

	"the guest does not listen":                             func(s *stage) { s.deaf = true },
	"the guest agent answers":                               func(s *stage) { s.guestAgent = "answers" },
	"the guest agent hangs":                                 func(s *stage) { s.guestAgent = "hangs" },
	"the guest agent refuses":                               func(s *stage) { s.guestAgent = "refuses" },
	"the guest does not hear the power button":              func(s *stage) { s.agentOnly = true },
	"the guest panics, and its process is kept":             func(s *stage) { s.power = PowerCrashed },
	"the guest hibernates":                                  func(s *stage) { s.power = PowerSuspended; s.agent.Ended(EndGuest, s.instance.UUID, s.now) },
	"QEMU cannot be killed":                                 func(s *stage) { s.unkillable = true },
	"libvirt is away, and QEMU stays when the guest is off": func(s *stage) { s.stays = PowerEnding },
	"nobody ends QEMU when the guest is off":                func(s *stage) { s.stays = PowerOff },
	"QEMU's process cannot be identified":                   func(s *stage) { s.noProcess = true },
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
		s.asked, s.exiting = false, false
		if s.noProcess {
			s.instance.PID, s.instance.Start = 0, 0
		}
	},
	"the guest powers off":          func(s *stage) { s.over(EndGuest) },
	"the guest begins to exit":      func(s *stage) { s.powerOff() },
	"QEMU crashes":                  func(s *stage) { s.over(EndCrashed) },
	"somebody destroys the domain":  func(s *stage) { s.over(EndDestroyed) },
	"the domain is migrated away":   func(s *stage) { s.over(EndMoved) },
	"a user pauses the guest":       func(s *stage) { s.power = PowerPaused },
	"the guest suspends itself":     func(s *stage) { s.power = PowerSuspended },
	"an I/O error pauses the guest": func(s *stage) { s.power, s.paused = PowerPausedOther, "I/O error" },
	"somebody saves the VM":         func(s *stage) { s.power, s.paused = PowerPausedOther, PausedBySave },
	"the VM is saved":               func(s *stage) { s.over(EndSaved) },
	"the guest can write again":     func(s *stage) { s.power = PowerOn },
	"the launcher registers": func(s *stage) {
		s.shims++
		s.launcher = launcher{dir: true, uid: s.launcher.uid, shim: s.shims, alive: true}
		s.uid()
	},
	"the launcher registers beside it":       func(s *stage) { s.shims++; s.launcher.shim, s.launcher.alive = s.shims, true; s.uid() },
	"the launcher is started again in place": func(s *stage) { s.shims++; s.launcher.shim, s.launcher.alive = s.shims, true },
	"the launcher is signalled":              func(s *stage) { s.trigger(s.launcher.uid) },
	"somebody touches the trigger":           func(s *stage) { s.trigger("") },
	"the launcher is killed":                 func(s *stage) { s.launcher.alive = false },
	"the launcher ends in order":             func(s *stage) { s.launcher.shim, s.launcher.alive = 0, false },
	"the launcher directory appears":         func(s *stage) { s.launcher.dir = true },

	"the agent dies": func(s *stage) { s.down = true },
	"the agent is killed right after its signal": func(s *stage) {
		s.down = true
		s.over(EndKilled)
	},
	"the agent is killed right after its signal, and there is no log": func(s *stage) {
		s.down = true
		s.over(EndExited)
	},
	"an agent starts":                 func(s *stage) { s.start() },
	"an agent starts without dry run": func(s *stage) { s.policy.DryRun = false; s.start() },
	"the node boots": func(s *stage) {
		s.boots++
		s.policy.BootID = fmt.Sprint("boot-", s.boots)
		s.over(EndUnknown)
		s.instance = Instance{}
		s.launcher = launcher{}
		s.node = NodeShutdownTime{}
	},
	"the watches stand still":                    func(s *stage) { s.still = true },
	"the watches go on":                          func(s *stage) { s.still = false },
	"the pod is to be preempted":                 func(s *stage) { s.reason = PreemptionByScheduler },
	"an eviction overwrites the reason":          func(s *stage) { s.reason = "" },
	"the VM is marked":                           func(s *stage) { s.vmi.Marked = true },
	"the mark is taken away":                     func(s *stage) { s.vmi.Marked = false },
	"a guest of 90 s is to come":                 func(s *stage) { s.migration, s.arrival = MigrationIncoming, Arrival{UID: "uid-1", Grace: "90"} },
	"the guest has come":                         func(s *stage) { s.migration = MigrationNone },
	"the migration begins":                       func(s *stage) { s.migration = MigrationOutgoing },
	"the migration fails":                        func(s *stage) { s.migration = MigrationNone },
	"it is not known which migrations there are": func(s *stage) { s.migration = MigrationUnknown },
	"the pod has ended and is removed":           func(s *stage) { s.podDone, s.podKill = true, s.now },
	"the node's shutdown is called off":          func(s *stage) { s.node = NodeShutdownTime{} },
	"the VMI is being deleted":                   func(s *stage) { s.vmi.State, s.vmi.DeletingAt = VMIDeleting, s.now },
	"the VMI is not shown any more":              func(s *stage) { s.vmi = VMI{State: VMIAbsent} },
	"the API server cannot be reached":           func(s *stage) { s.apiDown = true },
	"the API server answers again":               func(s *stage) { s.apiDown = false },
}

var parameters = map[string]func(*stage, string){
	"grace period":                           func(s *stage, v string) { s.grace = seconds(s.duration(v)); s.start() },
	"the guest needs, to shut down":          func(s *stage, v string) { s.off = s.duration(v) },
	"QEMU needs, to exit":                    func(s *stage, v string) { s.exits = s.duration(v) },
	"the VMI is shown":                       func(s *stage, v string) { s.vmi = shownVMI(v) },
	"a trigger is left that names":           func(s *stage, v string) { s.trigger(v) },
	"the API server, asked, says":            func(s *stage, v string) { s.answer = Fate(v) },
	"the pod is being deleted and killed in": func(s *stage, v string) { s.deletePod(s.duration(v)) },
	"the pod may be held for at most":        func(s *stage, v string) { s.allowance = s.duration(v) },
	"the pod is preempted and killed in": func(s *stage, v string) {
		s.deletePod(s.duration(v))
		s.reason = PreemptionByScheduler
	},
	"the node shuts down in":     func(s *stage, v string) { s.node = NodeShutdownTime{Begin: s.now, End: s.now.Add(s.duration(v))} },
	"the grace period is edited": func(s *stage, v string) { s.grace = seconds(s.duration(v)) },
	"a launcher registers for": func(s *stage, v string) {
		s.launcher.uid = v
		happenings["the launcher registers"](s)
		s.pod = "pod-of-" + v
		s.podKill, s.podDone = Never, false
	},
}

func shownVMI(uid string) VMI {
	return VMI{State: VMIPresent, UID: uid, Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// deletePod deletes the pod with a grace period, which a later deletion only shortens.
func (s *stage) deletePod(grace time.Duration) {
	if s.podKill == Never {
		s.podDeleted, s.podGrace = s.now, grace
	}
	s.podGrace, s.podKill = min(s.podGrace, grace), min(s.podKill, s.now.Add(grace))
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

func seconds(d time.Duration) string { return fmt.Sprint(int(d / time.Second)) }

// do carries out what the core has decided, and lets the world answer.
func (s *stage) do(d Decision) {
	v := s.agent
	r := func() Record { return v.Record() }
	say := func(format string, args ...any) { s.say("-", "%s [%s]", fmt.Sprintf(format, args...), d.Rule) }
	switch d.Do {
	case Adopt:
		s.apply(d)
		say("guard it: uid %q, grace period %v", r().UID, r().Period.Length)
	case Refresh:
		s.apply(d)
		say("take over: uid %q, grace period %v", r().UID, r().Period.Length)
	case Identify:
		s.apply(d)
		say("its process is %d", r().Instance.PID)
	case Begin:
		s.apply(d)
		say("begin: %s at %s, deadline %s", d.Cause, s.clock(d.When), s.clock(r().Shutdown.Deadline))
	case HoldShutdown:
		s.apply(d)
		h := r().Hold
		say("hold: %s since %s until %s, leaving %v", cmp.Or(h.Reason, "reason unknown"), s.clock(h.Start), s.clock(h.Until), h.Leaving)
		if h.Moving {
			say("hold: a migration is under way")
		}
	case Shorten:
		s.apply(d)
		say("the deadline is %s now", s.clock(r().Shutdown.Deadline))
	case DropDryRun:
		s.apply(d)
		say("drop the dry run's shutdown")
	case Finish:
		s.apply(d)
		say("report %s: %s, %s", Stopped, cmp.Or(d.Cause, "no shutdown"), d.Outcome)
		if text := v.Ending().Message; text != "" {
			s.say(".", "%s", text)
		}
	case WarnOfSave:
		say("report that the deadline cuts the save")
		v.Done(d, Result{}, s.now)
	case Forget:
		s.apply(d)
		say("forget it")
		s.see()
	case ClearTrigger:
		if say("remove the trigger"); d.Rule == "leftover-trigger" {
			s.say(".", "it named %q", s.launcher.triggerUID)
		}
		s.launcher.trigger = false
		v.Done(d, Result{}, t0)
		s.see()
	case ReportFailed:
		say("report that QEMU cannot be killed")
		v.Done(d, Result{}, t0)
	case Save:
		say("save")
		s.save(d)
	case Look:
		say("look at the domain")
		s.call(d, time.Millisecond, false, func() {})
	case Ask:
		say("ask by %s", d.Mode)
		s.ask(d)
	case Resume:
		say("resume the guest")
		s.call(d, time.Millisecond, false, func() { s.power = PowerOn })
	case Terminate:
		say("SIGTERM to %d", r().Instance.PID)
		v.Done(d, Result{}, s.now)
		s.die(50 * time.Millisecond)
	case Kill:
		say("SIGKILL to %d", r().Instance.PID)
		v.Done(d, Result{}, s.now)
		s.die(time.Millisecond)
	case Destroy:
		say("libvirt's destroy")
		s.die(time.Second)
		s.call(d, 40*time.Second, false, func() {})
	case Explain:
		say("ask libvirt why it ended")
		s.call(d, 100*time.Millisecond, false, func() { v.SeeEnd(s.end) })
	case Confirm:
		say("ask the API server about the VMI")
		s.confirm(d)
	default:
		s.t.Fatalf("unhandled action %s", d.Do)
	}
}

// call keeps track of a call that takes this long.
func (s *stage) call(d Decision, takes time.Duration, fails bool, then func()) {
	v := s.agent
	started := v.Started(d, s.now)
	s.after(takes, func() {
		if v.Done(d, Result{Call: started, Failed: fails}, s.now) && s.agent == v {
			then()
		}
	})
}

func (s *stage) save(d Decision) {
	rec, failed := s.agent.Record(), s.diskState == "full"
	takes := 5 * time.Millisecond
	if s.diskState == "hangs" {
		takes = time.Hour
	}
	s.call(d, takes, failed, func() {
		if failed {
			s.say(".", "the record cannot be written")
			return
		}
		s.say(".", "the record is on disk")
		s.disk = &rec
	})
}

func (s *stage) ask(d Decision) {
	takes := time.Millisecond
	if d.Mode == ModeAgent && s.guestAgent == "hangs" {
		takes = time.Hour
	}
	refused := ""
	if d.Mode == ModeAgent && s.guestAgent == "refuses" {
		refused = "Access denied"
	}
	v := s.agent
	started := v.Started(d, s.now)
	s.after(takes, func() { v.Done(d, Result{Call: started, Failed: refused != "", Refused: refused}, s.now) })
	i := s.instance
	hears := takes < time.Hour && refused == "" && !s.deaf && (d.Mode == ModeAgent || !s.agentOnly)
	if hears && s.power == PowerOn && !s.asked {
		s.asked = true
		s.after(s.off, func() {
			if s.instance == i && !s.ended {
				s.powerOff()
			}
		})
	}
}

// powerOff ends a guest that was asked.
func (s *stage) powerOff() {
	i := s.instance
	switch {
	case s.stays != "":
		s.say(".", "the guest has powered off, QEMU stays")
		s.power = s.stays
	case s.exits != 0:
		s.say(".", "the guest has powered off, QEMU is exiting")
		s.exiting = true
		s.after(s.exits, func() {
			if s.instance == i && !s.ended {
				s.say(".", "QEMU is gone")
				s.over(EndGuest)
			}
		})
	default:
		s.say(".", "the guest has powered off, QEMU is gone")
		s.over(EndGuest)
	}
}

// die ends QEMU, where it can be killed.
func (s *stage) die(takes time.Duration) {
	i := s.instance
	if s.unkillable || s.exiting {
		return
	}
	s.after(takes, func() {
		if s.instance == i && !s.ended {
			s.say(".", "QEMU is gone")
			s.over(EndKilled)
		}
	})
}

func (s *stage) confirm(d Decision) {
	v := s.agent
	uid, _ := v.Owner()
	fate, failed := s.answer, s.apiDown
	s.call(d, 100*time.Millisecond, failed, func() {
		if failed {
			s.say(".", "the API server cannot be reached")
			return
		}
		s.say(".", "the API server says of %s: %s", uid, fate)
		v.Learn(uid, fate, s.now)
	})
}

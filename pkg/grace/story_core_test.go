package grace

import "time"

// launcherPadding is what the shutdown of a launcher needs beyond the grace period.
const launcherPadding = 15 * time.Second

// start starts an agent with what is on disk, and lets it see the world.
func (s *stage) start() {
	s.down, s.begun = false, s.now
	var r Record
	if s.disk != nil {
		r = *s.disk
	}
	s.agent = NewVM("ns", "vm", r, &s.policy)
	if s.cluster {
		s.agent.AwaitCluster(s.begun.Add(time.Second))
	}
	s.see()
}

// see makes the agent look at everything.
func (s *stage) see() {
	if s.down {
		return
	}
	v, l := s.agent, &s.launcher
	v.SeeNode(s.node, 0)
	v.SeeMigration(s.migration, s.arrival)
	if s.cluster && !s.still {
		v.SeeVMI(s.vmi)
		v.SeePods([]Pod{{
			UID: s.pod, VMI: l.uid, Done: s.podDone, Deleting: s.podKill != Never, DeletingAt: s.podDeleted, KillAt: s.podKill, DeletionGrace: s.podGrace,
			Holdable: s.allowance > 0, Allowance: s.allowance, Padding: launcherPadding, HoldReason: s.reason,
		}})
	}
	d := Directory{
		Present: l.dir, Registered: l.shim != 0, Watched: true,
		Holder:  Holder{File: uint64(l.shim), Pod: s.pod},
		Trigger: l.trigger, TriggerUID: l.triggerUID, TriggerID: TriggerID{Inode: uint64(l.triggers)},
	}
	if d.Registered {
		d.UID, d.Readable, d.Grace = l.uid, true, s.grace
	}
	d.LauncherGone = v.Record().Launcher.PID != 0 && (!l.alive || v.Record().Launcher.PID != l.shim)
	if l.alive {
		d.Locked, d.Holder.PID, d.Holder.Start = true, l.shim, 1
	}
	if s.cluster {
		d.Holder.Pod = s.pod
	}
	if v.obs.Pod.UID == v.obs.Followed {
		v.SeeDirectory(d, s.now, s.now)
	}
	if r := v.Record(); r.Instance != (Instance{}) && r.BootID == s.policy.BootID && r.Instance.PID != 0 &&
		(s.ended || s.instance != r.Instance) {
		v.ProcessGone(s.now)
	}
	if there := s.instance != (Instance{}) && !s.ended; there {
		v.SeeDomain(Domain{Instance: s.instance, Agent: s.guestAgent != "", Power: s.power, Paused: s.paused}, s.now)
	} else {
		v.DomainAbsent(s.now)
	}
}

// quietly carries out decisions that a story leaves out: looks, which are frequent, and
// reports to users.
func (s *stage) quietly(d Decision) bool {
	v := s.agent
	switch d.Do {
	case Look, LookDirectory:
		if d.Rule == "look" {
			return false
		}
		v.Done(d, Result{Call: v.Started(d, s.now)}, s.now)
		s.see()
	case Inspect:
		v.Done(d, Result{Call: v.Started(d, s.now)}, s.now)
		v.SeeProcess(s.exiting, s.now)
	case Watch, WriteStatus, Answer, FlushEvents:
		v.Done(d, Result{Call: v.Started(d, s.now)}, s.now)
		if d.Do == Answer && !v.Ending().Kept {
			s.launcher.trigger = false
		}
	case Remove:
		s.disk = nil
		v.Done(d, Result{Call: v.Started(d, s.now)}, s.now)
	case Announce, RejectPeriod, WarnOfPod, Follow:
		v.Done(d, Result{}, t0)
		s.see()
	case Reset:
		s.apply(d)
		s.see()
	default:
		return false
	}
	return true
}

func (s *stage) apply(d Decision) {
	if err := s.agent.done(d, s.now, time.Unix(0, 0)); err != nil {
		s.t.Fatal(err)
	}
}

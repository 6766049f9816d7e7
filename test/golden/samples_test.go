package golden

import (
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

const uid = "6f2c1a1e-9d53-4c0b-8a59-0c3f1d2b7e11"

func at(seconds int) time.Time {
	return time.Date(2026, 3, 1, 12, 30, seconds, 250_000_000, time.UTC)
}

// records has a record of each phase.
func records() []grace.Record {
	plain := grace.Record{
		Namespace: "shop", UID: uid, BootID: "0b9d3f5e-3a55-4a53-8f0e-4a4c5f6b7d10",
		Period:   grace.Period{Length: 90 * time.Second, Source: grace.SourceDomain},
		Instance: grace.Instance{UUID: "1c5c0f3a-7a3f-4a4e-9f57-2f6b8f0f6a01", PID: 48213, Start: 9318275},
		Launcher: grace.Holder{PID: 48190, Start: 9318201, Device: 41, File: 1048603},
	}
	running := plain
	running.VMICreated = time.Date(2026, 2, 28, 9, 0, 1, 0, time.UTC)
	running.Pod, running.Launcher.Pod, running.Holdable = "d3b07384-d9a0-4c9b-8f6e-1c2d3e4f5a6b", "d3b07384-d9a0-4c9b-8f6e-1c2d3e4f5a6b", true
	running.Period.Source = grace.SourceVMI
	running.Moving = true // since v0.2
	held := running
	held.Hold = grace.Hold{
		Reason: grace.PreemptionByScheduler, Start: 93_201_455_001_234, Until: 93_321_455_001_234,
		StartedAt: at(15), UntilAt: at(135), Leaving: true,
	}
	heldMoving := held
	heldMoving.Hold.Reason, heldMoving.Hold.Moving = grace.DeletionByTaintManager, true
	shuttingDown := held
	shuttingDown.Shutdown = grace.Shutdown{
		Cause: grace.LauncherSignal, Start: 93_321_455_001_234, Deadline: 93_411_455_001_234,
		StartedAt: at(135), DeadlineAt: at(225), Requested: true,
	}
	destroying := shuttingDown
	destroying.Shutdown.Cause, destroying.Shutdown.Signalled = grace.VMIDeleted, true
	over := shuttingDown
	over.Shutdown.Cause, over.Shutdown.DryRun = grace.NodeShutdown, true
	over.Shutdown.Over = grace.GuestOff // since v0.2
	never := plain
	never.Period = grace.Period{Length: grace.MaxPeriod, Source: grace.SourceLauncher}
	never.Shutdown = grace.Shutdown{Cause: grace.LauncherDied, Start: 1, Deadline: grace.Never, StartedAt: at(15), DeadlineAt: at(15).Add(grace.MaxPeriod)}
	all := map[string]grace.Record{
		"plain": plain, "running": running, "held": held, "held-moving": heldMoving, "shutting-down": shuttingDown,
		"destroying": destroying, "over": over, "never": never,
	}
	var list []grace.Record
	for name, r := range all {
		r.Name = name
		list = append(list, r)
	}
	return list
}

// launcher is what stands in a launcher directory.
type launcher struct {
	vm      signals.VM
	trigger *signals.Trigger
	status  *grace.Status
}

// launchers has a directory for each phase.
func launchers() map[string]launcher {
	vm := signals.VM{Namespace: "shop", Name: "db-0.prod", UID: uid, Grace: "90"}
	asks := vm
	asks.Grace, asks.Asking = "", signals.Asking{Asks: signals.AsksLauncher, PID: 7, Requested: 3, Result: signals.ResultOK}
	asks.Guest = signals.GuestOff // since v0.2
	trigger := &signals.Trigger{UID: uid, Signal: "SIGTERM", Time: at(15)}
	of := func(phase grace.Phase, cause grace.Cause) *grace.Status {
		return &grace.Status{UID: uid, Phase: phase, Cause: cause, StartedAt: at(15), Deadline: at(105), Request: 3}
	}
	forced, migrated := of(grace.Stopped, grace.VMIDeleted), &grace.Status{UID: uid, Phase: grace.Stopped, Outcome: grace.Migrated, EndedAt: at(20)}
	crashed := &grace.Status{UID: uid, Phase: grace.Stopped, Outcome: grace.Lost, End: grace.EndCrashed, EndedAt: at(20)} // since v0.2
	forced.Outcome, forced.EndedAt, forced.Message = grace.Forced, at(105), "it did not end by itself"
	return map[string]launcher{
		"registered":    {vm: vm},
		"running":       {vm: asks, status: &grace.Status{UID: uid, Phase: grace.Running}},
		"signalled":     {vm: asks, trigger: trigger, status: &grace.Status{UID: uid, Phase: grace.Running}},
		"held":          {vm: vm, trigger: trigger, status: of(grace.Held, grace.PreemptionByScheduler)},
		"shutting-down": {vm: asks, trigger: trigger, status: of(grace.ShuttingDown, grace.LauncherSignal)},
		"destroying":    {vm: vm, trigger: trigger, status: of(grace.Destroying, grace.LauncherSignal)},
		"forced":        {vm: vm, status: forced},
		"migrated":      {vm: vm, status: migrated},
		"crashed":       {vm: vm, status: crashed},
	}
}

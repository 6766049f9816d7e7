package faults

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

// Given a record of another boot whose deadline has long passed, and a new VM whose QEMU
// has the recorded PID, start time and UUID. When the agent starts, then it guards the new
// VM as such and does not destroy it at the old deadline.
func TestARecordOfAnotherBootHitsNoNewVM(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t)
	g := n.Boot(t, node.Spec{Firmware: true})
	gone := a.LauncherFor(t, g.Namespace, "gone", "uid-gone")
	stale := func(name, uid string, i grace.Instance) grace.Record {
		begun := time.Now().Add(-time.Hour)
		return grace.Record{
			Namespace: g.Namespace, Name: name, UID: uid, BootID: "01234567-89ab-4cde-8f01-23456789abcd",
			Period: grace.Period{Length: 10 * time.Second, Source: grace.SourceLauncher}, Instance: i,
			Shutdown: grace.Shutdown{
				Cause: grace.LauncherSignal, Start: 1, Deadline: grace.Mono(1 + 10*time.Second),
				StartedAt: begun, DeadlineAt: begun.Add(10 * time.Second), Requested: true,
			},
		}
	}
	store, _, err := gracecache.Take(durable.Real(), a.StateDir)
	if err == nil {
		err = store.MakeWritable()
	}
	if err != nil {
		t.Fatal(err)
	}
	same := grace.Instance{UUID: g.UUID, PID: g.PID, Start: g.StartTime}
	for _, r := range []grace.Record{stale(g.Name, "uid-old", same), stale("gone", "uid-gone", grace.Instance{UUID: g.UUID, PID: 1, Start: 1})} {
		if err := store.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	v := a.VM(t, g, "--grace-period=60")
	v.WaitRegistered(t)
	if live := a.Status(t); len(live) != 0 {
		t.Errorf("node-agent status shows records of another boot as live: %+v", live)
	}

	a.Start(t)
	if s := gone.WaitStopped(t, soon); s.Outcome != "Lost" || s.Cause != "LauncherSignal" || s.UID != "uid-gone" {
		t.Errorf("status.json of the VM that is gone: %+v", s)
	}
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, g)
		return ok && s.Phase == "Running" && s.UID == g.UID && s.GracePeriodSeconds == 60
	}, "the new VM is not guarded as one of its own")
	node.Never(t, 15*time.Second, g.Gone, "the new VM was destroyed at the old deadline")
	if s := v.Launcher.Status(); s.Phase != "Running" || s.UID != g.UID || s.Deadline != "" {
		t.Errorf("status.json of the new VM: %+v", s)
	}
	left, err := filepath.Glob(filepath.Join(a.StateDir, "*gone*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in the state directory: %v, %v", left, err)
	}
}

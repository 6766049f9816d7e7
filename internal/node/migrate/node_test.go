package migrate

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// listed is a watch whose first list may be incomplete.
type listed struct {
	host

	all      []*Migration
	complete bool
}

func (l *listed) Migrations() ([]*Migration, bool) { return l.all, l.complete }

// changes records the calls of Changed.
type changes struct {
	host

	names []string
}

func (v *changes) Changed(_, name string) { v.names = append(v.names, name) }

// Otherwise a migrating VM would count as one that does not migrate, for a moment
// after the agent's start.
func TestMigrationsAreUnknownBeforeEachHasItsSide(t *testing.T) {
	l, vms := &listed{}, &changes{}
	n := New(Config{Node: "a", Cluster: l, VMs: vms})
	is := func(when string, want grace.Migration) {
		t.Helper()
		if got, _ := n.MigrationOf("ns_vm"); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	l.complete = true
	is("listed, not reconciled", grace.MigrationUnknown)
	l.complete = false
	n.reconcile(t.Context())
	is("reconciled, list incomplete", grace.MigrationUnknown)
	if len(vms.names) != 0 {
		t.Errorf("Changed is called too early: %q", vms.names)
	}
	l.complete = true
	n.reconcile(t.Context())
	n.reconcile(t.Context())
	is("all reconciled", grace.MigrationNone)
	if len(vms.names) != 1 || vms.names[0] != "" {
		t.Errorf("Changed: %q, want all VMs once", vms.names)
	}
}

// Given a side that waits for its guest. When the guest's launcher says something else, then that
// side looks at once, and no other.
func TestASideLooksWhenTheGuestsLauncherHasChanged(t *testing.T) {
	n := New(Config{})
	s, other := &side{domain: "ns_vm", wake: make(chan struct{}, 1)}, &side{domain: "ns_other", wake: make(chan struct{}, 1)}
	n.sides = map[string]*side{"u-1": s, "u-2": other}
	n.DomainChanged("ns_vm")
	if len(s.wake) != 1 || len(other.wake) != 0 {
		t.Errorf("wakes %d times, and the other side %d times", len(s.wake), len(other.wake))
	}
}

// Given a migration with a bandwidth. When QEMU sends what it may send in 100 ms at once, then the
// relay does not wait after each read.
func TestABurstOfQEMUsPassesWithoutAWait(t *testing.T) {
	m := &Migration{}
	m.Status.MigrationState = &kubevirt.MigrationState{Options: &kubevirt.MigrationOptions{BandwidthMiB: 24}}
	l, now := streamLimit(m), time.Now()
	if !l.AllowN(now, 24<<20/10) || l.AllowN(now, 24<<20) {
		t.Errorf("bursts of %d bytes are let through", l.Burst())
	}
}

// Given a launcher that sends as fast as it can. Then no more passes than the migration's bandwidth and a
// quarter, beside one burst; all of it where there is no limit.
func TestAStreamKeepsToItsMigrationsBandwidth(t *testing.T) {
	const mib = 1 << 20
	for bandwidth, want := range map[int64]time.Duration{4: 3750 * time.Millisecond, 0: 0} { // (20 - 1.25) / 5
		synctest.Test(t, func(t *testing.T) {
			m := &Migration{}
			m.Status.MigrationState = &kubevirt.MigrationState{Options: &kubevirt.MigrationOptions{BandwidthMiB: bandwidth}}
			qemu, from := net.Pipe()
			to, target := net.Pipe()
			go func() { _, _ = qemu.Write(make([]byte, 20*mib)); _ = qemu.Close() }()
			var heard atomic.Int64
			go func() { n, _ := io.Copy(io.Discard, target); heard.Store(n); _ = target.Close() }()
			var passed atomic.Int64
			begun := time.Now()
			copyStream(t.Context(), to, &limited{ctx: t.Context(), Conn: from, limit: streamLimit(m), passed: &passed})
			took := time.Since(begun)
			synctest.Wait()
			if heard.Load() != 20*mib || passed.Load() != 20*mib || (took-want).Abs() > 100*time.Millisecond {
				t.Errorf("with %d MiB/s: %d bytes of %d in %v, want %v", bandwidth, heard.Load(), passed.Load(), took, want)
			}
		})
	}
}

// Given a target that has written TargetReady and waits for the API server's answer. When the
// source, which has read it, sends the guest, then it is let in. Otherwise the move would fail.
func TestASourceMayBeFasterThanTheAPIServersAnswerToTheTarget(t *testing.T) {
	for offered, want := range map[bool]bool{true: true, false: false} {
		n := New(Config{Node: "b", Launchers: host{w: given(t)}})
		m := &Migration{}
		m.Status.Phase = kubevirt.MigrationPreparingTarget
		m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: "a", TargetNode: "b", DomainUUID: guestUUID}
		s := &side{node: n, target: true, migration: m}
		if offered {
			s.offer()
		}
		if err := s.admit("a", hello{Role: roleRelay, UUID: guestUUID}); (err == nil) != want {
			t.Errorf("offered: %v: %v", offered, err)
		}
	}
}

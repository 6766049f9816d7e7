package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Sender and Hypervisor are what a live migration needs of a host: see internal/node/migrate.
type Sender interface {
	Migrate(ctx context.Context, o hypervisor.Outgoing) error
	Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error)
	Abort(ctx context.Context, name string, i grace.Instance) error
	Pause(ctx context.Context, name string, i grace.Instance) error
}

// Hypervisor is the part of both hosts.
type Hypervisor interface {
	Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error)
	Resume(ctx context.Context, name string, i grace.Instance) error
	Remove(ctx context.Context, name string, i grace.Instance) error
	Left(ctx context.Context, name string, i grace.Instance) (bool, error)
}

// MoveHarness is two hosts, between which guests move.
type MoveHarness struct {
	Sender         Sender
	Source, Target Hypervisor
	// Start starts a guest on the source, and what the target needs for it. It returns the
	// domain's name. What is left of the guest ends with the test.
	Start func(t *testing.T) string
	// Connect lets the source reach the target for one migration, and returns the target's
	// URI, if it has one.
	Connect func(t *testing.T, name string) string
	// Pause pauses the guest on the source, as a user would.
	Pause func(t *testing.T, name string)
}

// MoveSuite describes a run of the contract of migrations.
type MoveSuite struct {
	// New makes a fresh harness that ends with the test.
	New func(t *testing.T) *MoveHarness
	// Timeout bounds every wait.
	Timeout time.Duration
}

// RunMoves runs the contract of migrations.
func RunMoves(t *testing.T, s MoveSuite) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(*move)
	}{
		{"AGuestArrivesPausedAndRunsWhenItIsResumed", (*move).aGuestArrivesPaused},
		{"AGuestThatItsUserHasPausedArrives", (*move).aPausedGuestArrives},
		{"AnAbortedMigrationLetsTheGuestRunOn", (*move).anAbortedMigration},
		{"AGuestThatWasPausedForItsMigrationRunsOnWithoutIt", (*move).aPauseEndsWithTheMigration},
		{"WithoutAJobThereIsNothingToDo", (*move).withoutAJob},
		{"AnotherInstanceIsLeftAlone", (*move).anotherInstance},
		{"WhatIsRemovedIsAbsent", (*move).removed},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := s.New(t)
			m := &move{contract: contract{T: t, timeout: s.Timeout}, MoveHarness: h}
			m.domain = h.Start(t)
			m.eventually(func() bool {
				stay, i := m.look(h.Source)
				m.here = i
				return stay == hypervisor.StayRunning && i.PID != 0
			}, "it runs on the source")
			c.test(m)
		})
	}
}

// move is one test of the contract of migrations.
type move struct {
	contract
	*MoveHarness

	domain string
	here   grace.Instance // on the source
}

func (m *move) look(h Hypervisor) (hypervisor.Stay, grace.Instance) {
	m.Helper()
	stay, i, err := h.Look(m.ctx(), m.domain)
	if err != nil {
		m.Logf("look: %v", err)
		return hypervisor.StayUnknown, i
	}
	return stay, i
}

// becomes waits until a host shows one of the stays. Until then it may show none of never.
func (m *move) becomes(h Hypervisor, want map[hypervisor.Stay]bool, never hypervisor.Stay) grace.Instance {
	m.Helper()
	var there grace.Instance
	m.eventually(func() bool {
		stay, i := m.look(h)
		if stay == never {
			m.Fatalf("it is %q", stay)
		}
		there = i
		return want[stay]
	}, "it becomes what it has to")
	return there
}

// send begins to send the guest. The result comes when that is over.
func (m *move) send(bandwidth uint64) <-chan error {
	m.Helper()
	o := hypervisor.Outgoing{Domain: m.domain, Instance: m.here, Bandwidth: bandwidth, URI: m.Connect(m.T, m.domain)}
	over := make(chan error, 1)
	ctx := m.ctx()
	go func() { over <- m.Sender.Migrate(ctx, o) }()
	return over
}

// slowly sends the guest so slowly that it does not arrive, and waits until that is under way.
func (m *move) slowly() <-chan error {
	m.Helper()
	over := m.send(1)
	m.eventually(func() bool {
		stay, _ := m.look(m.Source)
		p, err := m.Sender.Progress(m.ctx(), m.domain, m.here)
		return stay == hypervisor.StayBusy && err == nil && p.Total > 0 && p.Remaining > 0 && p.Remaining <= p.Total
	}, "it is being sent")
	return over
}

func (m *move) arrives() grace.Instance {
	m.Helper()
	if stay, _ := m.look(m.Target); stay != hypervisor.StayAbsent && stay != hypervisor.StayWaiting {
		m.Fatalf("before it is sent it is %q on the target", stay)
	}
	if err := <-m.send(0); err != nil {
		m.Fatal(err)
	}
	there := m.becomes(m.Target, map[hypervisor.Stay]bool{hypervisor.StayPaused: true}, hypervisor.StayRunning)
	// What has been sent does not run at the source, and no one but the caller ends it.
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayLeft: true, hypervisor.StayAbsent: true}, hypervisor.StayRunning)
	return there
}

func (m *move) aGuestArrivesPaused() {
	there := m.arrives()
	if err := m.Source.Remove(m.ctx(), m.domain, m.here); err != nil {
		m.Error(err)
	}
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayAbsent: true}, hypervisor.StayRunning)
	for range 2 {
		if err := m.Target.Resume(m.ctx(), m.domain, there); err != nil {
			m.Fatal(err)
		}
		m.becomes(m.Target, map[hypervisor.Stay]bool{hypervisor.StayRunning: true}, hypervisor.StayAbsent)
	}
	if left, err := m.Target.Left(m.ctx(), m.domain, there); left || err != nil {
		m.Errorf("it has left the target: %v, %v", left, err)
	}
}

func (m *move) aPausedGuestArrives() {
	m.Pause(m.T, m.domain)
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayPaused: true}, hypervisor.StayAbsent)
	m.arrives()
}

func (m *move) anAbortedMigration() {
	over := m.slowly()
	if err := m.Sender.Abort(m.ctx(), m.domain, m.here); err != nil {
		m.Error(err)
	}
	if err := <-over; err == nil {
		m.Error("an aborted migration has succeeded")
	}
	if i := m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayRunning: true}, hypervisor.StayLeft); i != m.here {
		m.Errorf("%+v runs on, was %+v", i, m.here)
	}
	m.becomes(m.Target, map[hypervisor.Stay]bool{hypervisor.StayAbsent: true}, hypervisor.StayRunning)
}

func (m *move) aPauseEndsWithTheMigration() {
	over := m.slowly()
	for range 2 { // it may be stopped already
		if err := m.Sender.Pause(m.ctx(), m.domain, m.here); err != nil {
			m.Fatal(err)
		}
	}
	if stay, _ := m.look(m.Source); stay != hypervisor.StayBusy {
		m.Errorf("its migration does not go on: it is %q", stay)
	}
	if err := m.Sender.Abort(m.ctx(), m.domain, m.here); err != nil {
		m.Error(err)
	}
	if err := <-over; err == nil {
		m.Error("an aborted migration has succeeded")
	}
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayRunning: true}, hypervisor.StayLeft)
}

func (m *move) withoutAJob() {
	p, err := m.Sender.Progress(m.ctx(), m.domain, m.here)
	if m.fails(err, hypervisor.ErrState, "ask for the progress of no migration"); p != (hypervisor.Progress{}) {
		m.Errorf("the progress of no migration: %+v", p)
	}
	m.fails(m.Sender.Pause(m.ctx(), m.domain, m.here), hypervisor.ErrState, "pause without a migration")
	m.fails(m.Sender.Abort(m.ctx(), m.domain, m.here), hypervisor.ErrState, "abort no migration")
	if err := m.Source.Resume(m.ctx(), m.domain, m.here); err != nil {
		m.Errorf("resume what runs: %v", err)
	}
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayRunning: true}, hypervisor.StayPaused)
}

func (m *move) anotherInstance() {
	for _, i := range []grace.Instance{{UUID: m.here.UUID, PID: m.here.PID, Start: m.here.Start + 1}, {UUID: "11111111-2222-4333-8444-555555555555", PID: m.here.PID, Start: m.here.Start}} {
		m.fails(m.Sender.Migrate(m.ctx(), hypervisor.Outgoing{Domain: m.domain, Instance: i}), hypervisor.ErrOtherInstance, "migrate")
		_, err := m.Sender.Progress(m.ctx(), m.domain, i)
		m.fails(err, hypervisor.ErrOtherInstance, "ask for the progress")
		m.fails(m.Sender.Pause(m.ctx(), m.domain, i), hypervisor.ErrOtherInstance, "pause")
		m.fails(m.Sender.Abort(m.ctx(), m.domain, i), hypervisor.ErrOtherInstance, "abort")
		m.fails(m.Source.Resume(m.ctx(), m.domain, i), hypervisor.ErrOtherInstance, "resume")
		m.fails(m.Source.Remove(m.ctx(), m.domain, i), hypervisor.ErrOtherInstance, "remove")
	}
	if stay, i := m.look(m.Source); stay != hypervisor.StayRunning || i != m.here {
		m.Errorf("it is %q, %+v", stay, i)
	}
}

func (m *move) removed() {
	if err := m.Source.Remove(m.ctx(), m.domain, m.here); err != nil {
		m.Fatal(err)
	}
	m.becomes(m.Source, map[hypervisor.Stay]bool{hypervisor.StayAbsent: true}, hypervisor.StayPaused)
	if err := m.Source.Remove(m.ctx(), m.domain, m.here); err != nil {
		m.Errorf("remove it again: %v", err)
	}
	_, err := m.Sender.Progress(m.ctx(), m.domain, m.here)
	m.fails(err, hypervisor.ErrNotFound, "ask for the progress of what is gone")
	m.fails(m.Source.Resume(m.ctx(), m.domain, m.here), hypervisor.ErrNotFound, "resume what is gone")
	if stay, _, err := m.Source.Look(m.ctx(), missing); err != nil || stay != hypervisor.StayAbsent {
		m.Errorf("what never was is %q, %v", stay, err)
	}
}

package inpod

import (
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// freshFor is how long a launcher's answer to a look tells what the guest is doing.
const freshFor = 500 * time.Millisecond

// arrivedFor is how long a guest that has arrived counts as paused without a look: nobody but the
// agent resumes it so soon.
const arrivedFor = time.Minute

// cancelTimeout is how long a launcher may take to end a migration. Nothing goes through the
// agents any more then.
const cancelTimeout = 30 * time.Second

// errUnsent is why a process was ended whose guest was not sent there.
var errUnsent = errors.New("a guest that nobody has sent ran in a migration's target, and was ended: " +
	"the launcher's shim is too old to wait for one, or its command does not take the words of --incoming-args")

// errTooOld is why a launcher cannot carry out requests about migrations.
var errTooOld = errors.New("the launcher's shim is too old to be moved")

// moves is what is known of the migrations of one VM process. Only what the launcher that named
// the process says of it counts. It is a tenant's word.
type moves struct {
	says   signals.Moving
	since  time.Time // its state was first heard
	heard  bool      // by the last look, that launcher says it
	target bool      // its pod was made as a migration's target

	// asked is the last request of this driver. An answer to a request that was not made does
	// not count.
	asked    grace.MoveRequest
	answered uint64
	result   string
	lookedAt time.Time // when an answer said what the guest was doing

	cancelAt time.Time // when this driver asked for the end of the migration
	lost     bool      // that had no effect: its launcher's word about the migration counts no more

	begun   bool // the guest has run in this process
	resumed bool // by an answered request, since the last one that was to move it
	removed bool // by this driver, after it had been sent
}

// next returns what is known of another process: nothing but the number of the last request.
func (m *moves) next() moves {
	return moves{asked: m.asked, answered: m.asked.Request, target: m.target}
}

// hear takes what the launcher says. It reports whether that is news.
func (m *moves) hear(says signals.Moving, now time.Time) (news bool) {
	news = !m.heard || says != m.says
	if says.State != m.says.State {
		m.since = now
	}
	m.says, m.heard = says, true
	m.lost = !m.cancelAt.IsZero() && now.Sub(m.cancelAt) > cancelTimeout
	if n := says.Requested; n > m.answered && n <= m.asked.Request {
		m.answered, m.result = n, says.Result
		m.carriedOut(n, now)
	}
	switch says.State {
	case signals.StateRunning, signals.StatePaused, signals.StateCompleted, signals.StateCancelled:
		m.begun = true // a guest that is still to arrive has none of these
	default:
	}
	return news
}

// cancels notes that the migration is to end.
func (m *moves) cancels(now time.Time) {
	if m.cancelAt.IsZero() {
		m.cancelAt = now
	}
}

// carriedOut notes what the answer to a request means.
func (m *moves) carriedOut(n uint64, now time.Time) {
	if n != m.asked.Request || m.result != signals.ResultOK {
		return
	}
	switch m.asked.Do {
	case grace.MoveLook:
		m.lookedAt = now
	case grace.MoveMigrate, grace.MoveIncoming:
		m.resumed, m.cancelAt, m.lost = false, time.Time{}, false
	case grace.MoveCont:
		m.resumed, m.begun = true, true
	default:
	}
}

// job reports whether a migration is under way. Of a QEMU that waits for a guest a request that
// was refused begins none.
func (m *moves) job() bool {
	if m.lost {
		return false
	}
	switch m.says.State {
	case signals.StateSetup:
		return m.says.Requested > 0 && (m.says.Result == signals.ResultOK || !m.target || m.begun)
	case signals.StateActive, signals.StatePaused:
		return true
	default:
		return false
	}
}

// waits reports whether the process waits for a guest, of which nothing has arrived. Only a
// migration's target does, and only until its guest has run.
func (m *moves) waits() bool {
	return m.target && !m.begun && !m.job() && (m.says.State == signals.StateSetup || m.says.State == signals.StateNone)
}

// unsent reports whether a guest runs in a migration's target that nobody has sent there: the same guest
// runs at the source. Its launcher says nothing of migrations, or that it runs without a request.
// One that has received its guest has carried out a request.
func (m *moves) unsent() bool {
	runs := m.says.Guest == signals.GuestRunning && m.says.State == signals.StateNone && m.says.Requested == 0
	return m.target && m.heard && !m.begun && (runs || m.says == (signals.Moving{}))
}

// arriving reports whether the guest has not run here, or does not run again since it arrived.
func (m *moves) arriving() bool {
	return m.target && !m.begun || m.arrived()
}

// arrived reports whether the guest has arrived and was not resumed since.
func (m *moves) arrived() bool { return m.says.State == signals.StateArrived && !m.resumed }

// left reports whether the guest has been sent, whole, and was not resumed since.
func (m *moves) left() bool { return m.says.State == signals.StateCompleted && !m.resumed }

// stay returns what the launcher says of a process that runs. known is false if it has to be
// asked.
func (m *moves) stay(now time.Time) (stay hypervisor.Stay, known bool) {
	switch {
	case !m.heard:
		return hypervisor.StayUnknown, true
	case m.waits() && m.says.State == signals.StateSetup:
		return hypervisor.StayWaiting, true
	case m.job():
		return hypervisor.StayBusy, true
	case m.waits() || m.says.State == signals.StateSetup:
		return hypervisor.StayUnknown, true // not yet, or nonsense
	case m.left():
		return hypervisor.StayLeft, true
	case m.arrived() && now.Sub(m.since) < arrivedFor:
		return hypervisor.StayPaused, true
	case m.lookedAt.IsZero() || now.Sub(m.lookedAt) > freshFor:
		return hypervisor.StayUnknown, false
	}
	switch m.says.Guest {
	case "":
		return hypervisor.StayUnknown, true
	case signals.GuestRunning:
		return hypervisor.StayRunning, true
	case signals.GuestPaused:
		return hypervisor.StayPaused, true
	default:
		return hypervisor.StayStopped, true
	}
}

// sent reports whether the guest has been sent by request n, and why not once that is over.
func (m *moves) sent(n uint64) (over bool, err error) {
	switch {
	case m.says.Requested < n || !m.heard || m.job():
		return false, nil
	case m.says.State == signals.StateCompleted:
		return true, nil
	case m.says.State == signals.StateFailed || m.says.State == signals.StateCancelled:
		return true, fmt.Errorf("the launcher says %s: %.200q", m.says.State, m.says.Reason)
	default:
		return true, fmt.Errorf("the launcher says %.64q of a guest that is being sent", m.says.State)
	}
}

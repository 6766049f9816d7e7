package inpod

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// ask is the state after a request.
func (m moves) ask(do grace.Move) moves {
	m.asked = grace.MoveRequest{Request: m.asked.Request + 1, Do: do}
	return m
}

// says is the state after the launcher has carried out the last request, in this state.
func (m moves) told(state signals.MoveState, guest string) moves {
	says := signals.Moving{Able: signals.AbleOK, State: state, Guest: guest, Requested: m.asked.Request}
	if says.Requested > 0 {
		says.Result = signals.ResultOK
	}
	m.hear(says, now)
	return m
}

var now = time.Unix(1000, 0)

func TestWhatALaunchersWordMeans(t *testing.T) {
	source, target := moves{}, moves{target: true}
	const look, unknown, waiting = "look", hypervisor.StayUnknown, hypervisor.StayWaiting
	arrived := target.ask(grace.MoveIncoming).told(signals.StateArrived, signals.GuestPaused)
	completed := source.ask(grace.MoveMigrate).told(signals.StateCompleted, "postmigrate")
	for name, c := range map[string]struct {
		m     moves
		stay  hypervisor.Stay // or look
		power grace.Power     // "" = hidden
	}{
		"nothing is said":                {source, unknown, grace.PowerOn},
		"a guest at rest":                {source.told("", ""), look, grace.PowerOn},
		"it runs":                        {source.ask(grace.MoveLook).told("", signals.GuestRunning), hypervisor.StayRunning, grace.PowerOn},
		"its user has paused it":         {source.ask(grace.MoveLook).told("", signals.GuestPaused), hypervisor.StayPaused, grace.PowerOn},
		"an I/O error":                   {source.ask(grace.MoveLook).told("", "io-error"), hypervisor.StayStopped, grace.PowerOn},
		"its monitor did not say":        {source.ask(grace.MoveLook).told("", ""), unknown, grace.PowerOn},
		"it begins to be sent":           {source.ask(grace.MoveMigrate).told(signals.StateSetup, ""), hypervisor.StayBusy, grace.PowerOn},
		"it is being sent":               {source.ask(grace.MoveMigrate).told(signals.StateActive, ""), hypervisor.StayBusy, grace.PowerOn},
		"it is being sent, and stopped":  {source.ask(grace.MovePause).told(signals.StatePaused, ""), hypervisor.StayBusy, grace.PowerOn},
		"it was sent":                    {completed, hypervisor.StayLeft, grace.PowerOn},
		"it was sent, and runs on":       {completed.ask(grace.MoveCont).told(signals.StateCompleted, ""), look, grace.PowerOn},
		"it was not sent":                {source.ask(grace.MoveMigrate).told(signals.StateFailed, ""), look, grace.PowerOn},
		"an unknown state":               {source.ask(grace.MoveMigrate).told("sideways", ""), look, grace.PowerOn},
		"no target, but it waits":        {source.told(signals.StateSetup, ""), unknown, grace.PowerOn},
		"a target starts":                {target.told("", ""), unknown, ""},
		"a target waits":                 {target.told(signals.StateSetup, ""), waiting, ""},
		"a target's shim is silent":      {target, unknown, ""},
		"a target begins to receive":     {target.ask(grace.MoveIncoming).told(signals.StateSetup, ""), hypervisor.StayBusy, grace.PowerPaused},
		"a target receives":              {target.ask(grace.MoveIncoming).told(signals.StateActive, ""), hypervisor.StayBusy, grace.PowerPaused},
		"it has arrived":                 {arrived, hypervisor.StayPaused, grace.PowerPaused},
		"it has arrived, and goes on":    {arrived.ask(grace.MoveCont).told(signals.StateRunning, ""), look, grace.PowerOn},
		"it goes on, the state is stale": {arrived.ask(grace.MoveCont).told(signals.StateArrived, ""), look, grace.PowerOn},
		"it goes on, and then waits":     {arrived.ask(grace.MoveCont).told(signals.StateRunning, "").told(signals.StateSetup, ""), hypervisor.StayBusy, grace.PowerOn},
		"it came, and is sent on":        {arrived.ask(grace.MoveCont).told(signals.StateRunning, "").ask(grace.MoveMigrate).told(signals.StateCompleted, ""), hypervisor.StayLeft, grace.PowerOn},
	} {
		stay, known := c.m.stay(now)
		if !known {
			stay = look
		}
		v := &vm{moves: c.m}
		is := v.shown()
		if is.hidden {
			is.power = ""
		}
		if stay != c.stay || is.power != c.power {
			t.Errorf("%s: %q and power %q, want %q and %q", name, stay, is.power, c.stay, c.power)
		}
	}
}

// Given a launcher of a migration's target. Then a guest that runs there although nobody has sent it is
// told from one that was sent, one that waits, and a launcher that has not said anything yet.
func TestAGuestThatRunsInATargetWasSentOrIsEnded(t *testing.T) {
	source, target := moves{}, moves{target: true}
	old := target
	old.hear(signals.Moving{}, now)
	oldSource := source
	oldSource.hear(signals.Moving{}, now)
	sent := target.ask(grace.MoveIncoming).told(signals.StateRunning, signals.GuestRunning)
	restarted := target // the agent, which has asked for nothing yet
	restarted.hear(sent.says, now)
	silent := sent
	silent.hear(signals.Moving{}, now)
	refused := target
	refused.hear(signals.Moving{Able: signals.AbleOK, Guest: signals.GuestRunning, Requested: 7, Result: "refused"}, now)
	for name, c := range map[string]struct {
		m    moves
		want bool
	}{
		"its shim is too old":                 {old, true},
		"its command does not wait":           {target.told("", signals.GuestRunning), true},
		"its monitor has not answered yet":    {target.told("", ""), false},
		"it waits":                            {target.told(signals.StateSetup, "inmigrate"), false},
		"it has said nothing":                 {target, false},
		"it was sent":                         {sent, false},
		"it waits, and a guest runs":          {target.told(signals.StateSetup, signals.GuestRunning), false},
		"it was sent, and its shim is silent": {silent, false},
		"it was sent, before the agent began": {restarted, false},
		"it has carried out a request":        {refused, false},
		"a source with an old shim":           {oldSource, false},
		"a source":                            {source.told("", signals.GuestRunning), false},
	} {
		if got := c.m.unsent(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnAnswerIsTrueForAMoment(t *testing.T) {
	m := moves{}.ask(grace.MoveLook).told("", signals.GuestRunning)
	if _, known := m.stay(now.Add(freshFor)); !known {
		t.Error("a fresh answer is asked for again")
	}
	if _, known := m.stay(now.Add(freshFor + 1)); known {
		t.Error("an old answer counts")
	}
	// A guest that arrived long ago may have been resumed by its user.
	m = moves{target: true}.ask(grace.MoveIncoming).told(signals.StateArrived, signals.GuestPaused)
	if _, known := m.stay(now.Add(arrivedFor)); known {
		t.Error("nobody looks at a guest that arrived long ago")
	}
}

func TestATargetsRefusalLeavesItWaiting(t *testing.T) {
	m := moves{target: true}.ask(grace.MoveIncoming)
	m.hear(signals.Moving{State: signals.StateSetup, Requested: m.asked.Request, Result: "no socket"}, now)
	if stay, _ := m.stay(now); stay != hypervisor.StayWaiting {
		t.Errorf("it is %q", stay)
	}
}

func TestOnlyAnswersToRequestsThatWereMadeCount(t *testing.T) {
	m := moves{}.ask(grace.MoveLook).told("", signals.GuestRunning).ask(grace.MoveCont)
	for _, n := range []uint64{0, 1, 3, 1 << 63} {
		m.hear(signals.Moving{State: signals.StateCompleted, Requested: n, Result: signals.ResultOK}, now)
		if m.answered != 1 || m.resumed {
			t.Errorf("an answer to %d counts", n)
		}
	}
	m.hear(signals.Moving{Requested: 2, Result: "no"}, now)
	if m.answered != 2 || m.result != "no" || m.resumed {
		t.Errorf("an error is %+v", m)
	}
	m.hear(signals.Moving{Requested: 2, Result: signals.ResultOK}, now)
	if m.result != "no" || m.resumed {
		t.Error("an answer is changed afterwards")
	}
}

func TestHowSendingEnds(t *testing.T) {
	m := moves{}.ask(grace.MoveMigrate)
	for state, want := range map[signals.MoveState]struct{ over, fails bool }{
		signals.StateSetup: {}, signals.StateActive: {}, signals.StatePaused: {},
		signals.StateCompleted: {over: true},
		signals.StateFailed:    {true, true}, signals.StateCancelled: {true, true},
		// None of these is a state of a guest that is being sent.
		"": {true, true}, signals.StateArrived: {true, true}, signals.StateRunning: {true, true}, "sideways": {true, true},
	} {
		after := m.told(state, "")
		if over, err := after.sent(m.asked.Request); over != want.over || (err != nil) != want.fails {
			t.Errorf("%q: %v, %v", state, over, err)
		}
		if over, _ := after.sent(m.asked.Request + 1); over {
			t.Errorf("%q of an earlier request ends it", state)
		}
	}
}

func TestALauncherThatDoesNotCancelIsNotBelievedForEver(t *testing.T) {
	m := moves{}.ask(grace.MoveMigrate).told(signals.StateActive, "")
	m.cancels(now)
	m.cancels(now.Add(cancelTimeout)) // again
	for after, busy := range map[time.Duration]bool{cancelTimeout: true, cancelTimeout + 1: false} {
		m.hear(m.says, now.Add(after))
		stay, known := m.stay(now.Add(after))
		if (stay == hypervisor.StayBusy) != busy || known != busy {
			t.Errorf("after %v it is %q, %v", after, stay, known)
		}
		if over, err := m.sent(m.asked.Request); over == busy || (err == nil) != busy {
			t.Errorf("after %v its end: %v, %v", after, over, err)
		}
	}
	if m = m.ask(grace.MoveMigrate).told(signals.StateActive, ""); !m.job() {
		t.Error("the next migration does not count")
	}
}

// Given a guest that is arriving. When its launcher says that it has arrived, then the driver
// tells it: the source's guest is stopped, and the migration must not wait for its next look.
func TestAGuestThatHasArrivedIsToldAtOnce(t *testing.T) {
	arriving := moves{target: true, heard: true, says: signals.Moving{State: signals.StateActive}}
	arrived := arriving
	arrived.says.State = signals.StateArrived
	if was, is := (&vm{moves: arriving}).shown(), (&vm{moves: arrived}).shown(); was == is {
		t.Errorf("both show %+v", is)
	}
}

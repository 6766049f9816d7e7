package tunnel

import "testing"

// in returns a machine in a stage, with call 3 done and stream 2.
func in(s stage) *machine {
	a := agreement()
	m := newMachine(&a)
	m.stage, m.serial, m.stream = s, 4, 2
	return m
}

var stages = []stage{stageAuth, stageConnect, stageConnected, stagePrepared, stageStreamed, stageOver, stageClosed}

// Each call in each stage is tested: one that is not in this table is not due.
func TestACallIsDueInItsStagesOnly(t *testing.T) {
	for _, c := range []struct {
		procedure uint32
		closes    bool // a close callback is registered
		due       []stage
	}{
		{procAuthList, false, []stage{stageAuth}},
		{procOpen, false, []stage{stageConnect}},
		{procSupportsFeature, false, []stage{stageConnect, stageConnected}},
		{procRegisterClose, false, []stage{stageConnected}},
		{procRegisterClose, true, nil},
		{procPrepareTunnel, false, []stage{stageConnected}},
		{procFinish, false, []stage{stagePrepared, stageStreamed}},
		{procUnregisterClose, false, nil},
		{procUnregisterClose, true, []stage{stageConnected, stageStreamed, stageOver}},
		{procClose, false, []stage{stageConnected, stageStreamed, stageOver}},
		{procConnectionClosed, false, nil},
		{0, false, nil},
		{23, true, nil},
	} {
		for _, s := range stages {
			m := in(s)
			m.closes = c.closes
			want := false
			for _, d := range c.due {
				want = want || d == s
			}
			if m.due(c.procedure) != want {
				t.Errorf("call %d in stage %d, closes %t: want due %t", c.procedure, s, c.closes, want)
			}
		}
	}
}

func TestAFrameOfTheSourceIsACallOfTheNextSerial(t *testing.T) {
	due := frame{program: programRemote, version: 1, procedure: procClose, kind: kindCall, serial: 4}
	for what, c := range map[string]struct {
		passes bool
		change func(m *machine, f *frame)
	}{
		"as due":            {true, func(*machine, *frame) {}},
		"a reply":           {false, func(_ *machine, f *frame) { f.kind = kindReply }},
		"a message":         {false, func(_ *machine, f *frame) { f.kind = kindMessage }},
		"an error":          {false, func(_ *machine, f *frame) { f.status = statusError }},
		"to be continued":   {false, func(_ *machine, f *frame) { f.status = statusContinue }},
		"before an answer":  {false, func(m *machine, _ *frame) { m.waiting = procAuthList }},
		"the serial before": {false, func(_ *machine, f *frame) { f.serial-- }},
		"the serial behind": {false, func(_ *machine, f *frame) { f.serial++ }},
		"with arguments":    {false, func(_ *machine, f *frame) { f.body = make([]byte, 4) }},
	} {
		m, f := in(stageConnected), due
		c.change(m, &f)
		err := m.fromSource(&f)
		if (err == nil) != c.passes || err != nil && !isRefusal(err) {
			t.Errorf("%s: %v", what, err)
		}
		if c.passes && (m.waiting != procClose || m.serial != 5) {
			t.Errorf("%s: waits for %d, then serial %d", what, m.waiting, m.serial)
		}
	}
}

func TestAStreamIsOfThePreparedMigration(t *testing.T) {
	for what, c := range map[string]struct {
		passes bool
		change func(m *machine, f *frame)
		then   stage
	}{
		"more of it":                 {true, func(*machine, *frame) {}, stagePrepared},
		"its end":                    {true, func(_ *machine, f *frame) { f.status = statusOK }, stageStreamed},
		"its error":                  {true, func(_ *machine, f *frame) { f.status = statusError }, stageStreamed},
		"before it":                  {false, func(m *machine, _ *frame) { m.stage = stageConnected }, stageConnected},
		"after its end":              {false, func(m *machine, _ *frame) { m.stage = stageStreamed }, stageStreamed},
		"after an end of the target": {true, func(m *machine, _ *frame) { m.stage, m.broken = stageStreamed, true }, stageStreamed},
		"after all":                  {false, func(m *machine, _ *frame) { m.stage, m.broken = stageOver, true }, stageOver},
		"during a call":              {false, func(m *machine, _ *frame) { m.waiting = procFinish }, stagePrepared},
		"of another procedure":       {false, func(_ *machine, f *frame) { f.procedure = procFinish }, stagePrepared},
		"of another serial":          {false, func(_ *machine, f *frame) { f.serial++ }, stagePrepared},
	} {
		m := in(stagePrepared)
		f := frame{program: programRemote, version: 1, procedure: procPrepareTunnel, kind: kindStream, serial: 2, status: statusContinue}
		c.change(m, &f)
		if err := m.fromSource(&f); (err == nil) != c.passes || m.stage != c.then {
			t.Errorf("%s: %v, stage %d", what, err, m.stage)
		}
	}
}

func TestLibvirtOfThisNodeAnswersWhatWasAsked(t *testing.T) {
	for what, c := range map[string]struct {
		passes bool
		f      frame
		change func(m *machine)
		then   stage
	}{
		"the answer":                 {true, frame{procedure: procClose, kind: kindReply, serial: 3}, nil, stageClosed},
		"another answer":             {false, frame{procedure: procOpen, kind: kindReply, serial: 3}, nil, stagePrepared},
		"an answer of another":       {false, frame{procedure: procClose, kind: kindReply, serial: 2}, nil, stagePrepared},
		"an answer to nothing":       {false, frame{procedure: 0, kind: kindReply, serial: 3}, func(m *machine) { m.waiting = 0 }, stagePrepared},
		"a call":                     {false, frame{procedure: procClose, kind: kindCall, serial: 3}, nil, stagePrepared},
		"the connection's end":       {true, frame{procedure: procConnectionClosed, kind: kindMessage}, nil, stagePrepared},
		"another event":              {false, frame{procedure: 1, kind: kindMessage}, nil, stagePrepared},
		"a reply of an event":        {false, frame{procedure: procConnectionClosed, kind: kindReply}, nil, stagePrepared},
		"more of the stream":         {true, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 2, status: statusContinue}, nil, stagePrepared},
		"the stream's end":           {true, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 2}, nil, stagePrepared},
		"the stream's error":         {true, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 2, status: statusError}, nil, stageStreamed},
		"its error when all is over": {true, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 2, status: statusError}, func(m *machine) { m.stage = stageOver }, stageOver},
		"another stream":             {false, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 3}, nil, stagePrepared},
		"a stream of another":        {false, frame{procedure: procFinish, kind: kindStream, serial: 2}, nil, stagePrepared},
		"a stream before there is":   {false, frame{procedure: procPrepareTunnel, kind: kindStream, serial: 2}, func(m *machine) { m.stage = stageConnected }, stageConnected},
	} {
		m := in(stagePrepared)
		m.waiting = procClose
		if c.change != nil {
			c.change(m)
		}
		c.f.program, c.f.version = programRemote, protocolVersion
		if err := m.fromTarget(&c.f); (err == nil) != c.passes || m.stage != c.then || err != nil && !isRefusal(err) {
			t.Errorf("%s: %v, stage %d", what, err, m.stage)
		}
	}
}

// A reply with an error leaves the stage, or ends the migration.
func TestAnAnswerMovesTheStage(t *testing.T) {
	for _, c := range []struct {
		procedure           uint32
		from, worked, fails stage
	}{
		{procAuthList, stageAuth, stageConnect, stageConnect},
		{procOpen, stageConnect, stageConnected, stageConnect},
		{procSupportsFeature, stageConnected, stageConnected, stageConnected},
		{procRegisterClose, stageConnected, stageConnected, stageConnected},
		{procPrepareTunnel, stageConnected, stagePrepared, stageOver},
		{procFinish, stageStreamed, stageOver, stageOver},
		{procUnregisterClose, stageOver, stageOver, stageOver},
		{procClose, stageOver, stageClosed, stageClosed},
	} {
		for _, worked := range []bool{true, false} {
			m, want := in(c.from), c.fails
			if worked {
				want = c.worked
			}
			m.closes = c.procedure == procUnregisterClose
			if m.answered(c.procedure, worked); m.stage != want || m.closes != (worked && c.procedure == procRegisterClose) {
				t.Errorf("call %d, worked %t: stage %d, closes %t", c.procedure, worked, m.stage, m.closes)
			}
		}
	}
}

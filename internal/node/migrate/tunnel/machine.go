package tunnel

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// stage is the progress of an incoming migration.
type stage int

const (
	stageAuth stage = iota
	stageConnect
	stageConnected
	stagePrepared // PREPARE succeeded: the stream may follow
	stageStreamed // the stream has ended: FINISH may follow
	stageOver     // finished, or PREPARE failed: only calls that close the connection may follow
	stageClosed   // nothing may follow
)

// machine is the state machine of one incoming migration. It gets the frames of each
// direction in order. The two directions may call it concurrently.
type machine struct {
	agreed *Agreement

	mu    sync.Mutex
	stage stage

	serial  uint32 // of the next call
	waiting uint32 // procedure of the call without a reply yet, or 0
	stream  uint32 // serial of the stream
	closes  bool   // a close callback is registered
	broken  bool   // libvirt of this node has ended the stream

	pings *rate.Limiter
	idle  *time.Timer // ends the connection if the source does not go on

	prepared prepared
}

func newMachine(a *Agreement) *machine {
	return &machine{agreed: a, pings: rate.NewLimiter(pingRate, pingBurst), idle: time.NewTimer(prepareTimeout)}
}

// fromSource checks a frame of the source, and replaces its body by what to pass on.
func (m *machine) fromSource(f *frame) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f.keepalive():
		return m.ping()
	case f.kind == kindStream:
		return m.streamed(f)
	case f.kind != kindCall || f.status != statusOK:
		return refuse(ReasonCall, "a frame of type %d and status %d from the source", f.kind, f.status)
	case m.waiting != 0:
		return refuse(ReasonCall, "call %d while call %d has no answer", f.procedure, m.waiting)
	case f.serial != m.serial:
		return refuse(ReasonCall, "call %d with serial %d; %d is due", f.procedure, f.serial, m.serial)
	}
	if err := m.called(f); err != nil {
		return err
	}
	m.waiting, m.serial = f.procedure, m.serial+1
	m.goesOn()
	return nil
}

// called checks a call and its arguments.
func (m *machine) called(f *frame) (err error) {
	if f.serial >= maxCalls {
		return refuse(ReasonRate, "more than %d calls of one migration", maxCalls)
	}
	if !m.due(f.procedure) {
		return refuse(ReasonCall, "call %d, which is not due", f.procedure)
	}
	switch f.procedure {
	case procOpen:
		return open(f.body)
	case procSupportsFeature:
		return feature(f.body)
	case procPrepareTunnel:
		m.prepared, f.body, err = m.agreed.prepare(f.body)
		m.stream = f.serial
		return err
	case procFinish:
		var cancelled bool
		f.body, cancelled, err = m.agreed.finish(&m.prepared, f.body)
		if err == nil && m.stage == stagePrepared && !cancelled {
			return refuse(ReasonCall, "call %d, which is not due before the end of the stream", f.procedure)
		}
		return err
	default:
		if len(f.body) > 0 {
			return refuse(ReasonParam, "arguments of call %d, which has none", f.procedure)
		}
		return nil
	}
}

// due reports whether a call is allowed in the present stage. Calls that close the connection
// are allowed while no migration is under way.
func (m *machine) due(procedure uint32) bool {
	idle := m.stage == stageConnected || m.stage == stageStreamed || m.stage == stageOver
	switch procedure {
	case procAuthList:
		return m.stage == stageAuth
	case procOpen:
		return m.stage == stageConnect
	case procSupportsFeature:
		return m.stage == stageConnect || m.stage == stageConnected
	case procRegisterClose:
		return m.stage == stageConnected && !m.closes
	case procPrepareTunnel:
		return m.stage == stageConnected
	case procFinish: // without a stream if nothing could be sent
		return m.stage == stagePrepared || m.stage == stageStreamed
	case procUnregisterClose:
		return m.closes && idle
	case procClose:
		return idle
	default:
		return false
	}
}

// streamed checks a frame of the memory stream; its content is opaque. After this node's
// libvirt has ended the stream, more may be in transit; libvirt ignores it.
func (m *machine) streamed(f *frame) error {
	due := m.stage == stagePrepared || m.stage == stageStreamed && m.broken
	switch {
	case !due || m.waiting != 0 || f.procedure != procPrepareTunnel || f.serial != m.stream:
		return refuse(ReasonCall, "a stream that is not due")
	case f.status != statusContinue:
		m.stage = stageStreamed
	}
	m.goesOn()
	return nil
}

// fromTarget checks a frame of this node's libvirt.
func (m *machine) fromTarget(f *frame) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f.keepalive(), f.kind == kindMessage && f.procedure == procConnectionClosed:
		return nil
	case f.kind == kindStream && f.procedure == procPrepareTunnel && f.serial == m.stream && m.stage >= stagePrepared:
		if f.status == statusError && m.stage == stagePrepared {
			m.stage, m.broken = stageStreamed, true
		}
		return nil
	case f.kind != kindReply || m.waiting == 0 || f.procedure != m.waiting || f.serial != m.serial-1:
		return refuse(ReasonCall, "libvirt of this node answers what was not asked: procedure %d, type %d, serial %d", f.procedure, f.kind, f.serial)
	}
	m.waiting = 0
	m.answered(f.procedure, f.status == statusOK)
	m.goesOn()
	return nil
}

// answered advances the stage by a call's reply.
func (m *machine) answered(procedure uint32, worked bool) {
	switch {
	case procedure == procAuthList:
		m.stage = stageConnect
	case procedure == procOpen && worked:
		m.stage = stageConnected
	case procedure == procPrepareTunnel && worked:
		m.stage = stagePrepared
	case procedure == procPrepareTunnel, procedure == procFinish:
		m.stage = stageOver
	case procedure == procRegisterClose:
		m.closes = worked
	case procedure == procUnregisterClose:
		m.closes, m.stage = false, stageOver
	case procedure == procClose:
		m.stage = stageClosed
	}
}

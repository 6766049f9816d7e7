package tunnel

import "sync"

// stage is where an incoming migration stands.
type stage int

const (
	stageAuth stage = iota
	stageConnect
	stageConnected
	stagePrepared // libvirt has prepared: the stream may come
	stageStreamed // the stream is over: the end may come
	stageOver     // or prepared in vain: only what closes a connection follows
	stageClosed   // nothing may follow
)

// machine is one incoming migration. The frames of each side are shown to it in
// the order in which they come; the two sides may be shown at the same time.
type machine struct {
	agreed *Agreement

	mu    sync.Mutex
	stage stage

	serial  uint32 // of the next call
	waiting uint32 // procedure that waits for its reply; there is none of number 0
	stream  uint32 // serial of the stream
	closes  bool   // a close callback is registered
	broken  bool   // libvirt of this node has ended the stream

	prepared prepared
}

func newMachine(a *Agreement) *machine { return &machine{agreed: a} }

// fromSource takes a frame of the source's. What is to be passed on is the frame
// as it is afterwards.
func (m *machine) fromSource(f *frame) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f.keepalive():
		return nil
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
	return nil
}

// called reports whether a call is due.
func (m *machine) called(f *frame) (err error) {
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

// due: in which stages a call may come. What closes a connection may come whenever
// no migration is under way on it.
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
	case procFinish: // where nothing can be sent it follows at once
		return m.stage == stagePrepared || m.stage == stageStreamed
	case procUnregisterClose:
		return m.closes && idle
	case procClose:
		return idle
	default:
		return false
	}
}

// streamed takes a part of the memory stream. Nothing in it is understood here. After
// its end by this node's libvirt more may be on its way, which libvirt takes no notice of.
func (m *machine) streamed(f *frame) error {
	due := m.stage == stagePrepared || m.stage == stageStreamed && m.broken
	switch {
	case !due || m.waiting != 0 || f.procedure != procPrepareTunnel || f.serial != m.stream:
		return refuse(ReasonCall, "a stream that is not due")
	case f.status != statusContinue:
		m.stage = stageStreamed
	}
	return nil
}

// fromTarget takes a frame of our own libvirt's.
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
	return nil
}

// answered: a call has its answer.
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

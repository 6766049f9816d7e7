package tunnel

import "testing"

// preparedFor returns a machine whose libvirt has prepared, and the recorded frames that
// follow.
func preparedFor(t *testing.T) (*machine, []frame) {
	t.Helper()
	agreed := agreement()
	m := newMachine(&agreed)
	frames := recorded(t, "source.bin")
	for i, f := range frames {
		if err := m.fromSource(&f); err != nil {
			t.Fatal(err)
		}
		if err := m.fromTarget(&frame{procedure: f.procedure, kind: kindReply, serial: f.serial}); err != nil {
			t.Fatal(err)
		}
		if f.procedure == procPrepareTunnel {
			return m, frames[i+1:]
		}
	}
	t.Fatal("nothing is prepared")
	return nil, nil
}

// ofEnd returns the recorded FINISH, with cancelled as its last argument.
func ofEnd(frames []frame, cancelled byte) frame {
	for _, f := range edit(frames, procFinish, func(b []byte) []byte { b[len(b)-1] = cancelled; return b }) {
		if f.procedure == procFinish {
			return f
		}
	}
	return frame{}
}

// If the target's QEMU dies, its libvirt ends the stream while more of it is in transit.
// Those frames are not refused.
func TestWhatIsOnItsWayWhenTheTargetHasEndedTheStreamIsNotRefused(t *testing.T) {
	m, rest := preparedFor(t)
	stream := frame{procedure: procPrepareTunnel, kind: kindStream, serial: m.stream, status: statusContinue}
	for _, step := range []func() error{
		func() error { return m.fromSource(&stream) },
		func() error {
			return m.fromTarget(&frame{procedure: procPrepareTunnel, kind: kindStream, serial: m.stream, status: statusError})
		},
		func() error { return m.fromSource(&stream) },
		func() error { f := ofEnd(rest, 1); return m.fromSource(&f) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.fromSource(&stream); err == nil {
		t.Error("a stream after the call that ends the migration passes")
	}
}

// If the source's QEMU dies before anything is sent, its libvirt cancels at once.
func TestAMigrationMayBeCancelledBeforeAnythingIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		cancelled byte
		passes    bool
	}{"cancelled": {1, true}, "as if all had been sent": {0, false}} {
		m, rest := preparedFor(t)
		f := ofEnd(rest, c.cancelled)
		if err := m.fromSource(&f); (err == nil) != c.passes {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package tunnel

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func ping() *frame {
	return &frame{program: programKeepalive, version: protocolVersion, procedure: 1, kind: kindMessage}
}

// Formerly 200,000 pings passed before any call.
func TestKeepaliveMessagesAtAHighRateAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agreement()
		m := newMachine(&a)
		for i := range pingBurst {
			if err := m.fromSource(ping()); err != nil {
				t.Fatalf("ping %d: %v", i+1, err)
			}
		}
		if r, is := errors.AsType[*Refusal](m.fromSource(ping())); !is || r.Reason != ReasonRate {
			t.Errorf("one more: %v", r)
		}
		// libvirt's own pings pass, however long they go on.
		m = newMachine(&a)
		for range 10000 {
			time.Sleep(time.Second) //nolint:forbidigo // virtual time
			if err := m.fromSource(ping()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCallsOfOneMigrationAreBounded(t *testing.T) {
	a := agreement()
	m := newMachine(&a)
	m.stage = stageConnect
	for i := range uint32(maxCalls + 1) {
		call := &frame{program: programRemote, version: protocolVersion, procedure: procSupportsFeature, serial: i, body: []byte{0, 0, 0, 10}}
		err := m.fromSource(call)
		if r, is := errors.AsType[*Refusal](err); i == maxCalls && (!is || r.Reason != ReasonRate) || i < maxCalls && err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		m.waiting = 0
	}
}

// Each wait has its longest time: before PREPARE, in the stream, before FINISH, and
// after it. Pings do not extend it, and libvirt's own work for a call does not count.
func TestASourceThatDoesNotGoOnIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		until uint32 // the call after whose answer the source is silent; 0: from the beginning
		most  time.Duration
	}{
		"from the beginning": {0, prepareTimeout},
		"connected":          {procOpen, prepareTimeout},
		"prepared":           {procPrepareTunnel, idleTimeout},
		"finished":           {procFinish, idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const work = time.Hour // of libvirt, for PREPARE and FINISH
				source, sourceEnd := net.Pipe()
				libvirt, libvirtEnd := net.Pipe()
				errs := make(chan error, 1)
				began := time.Now()
				go func() { errs <- Guard(t.Context(), sourceEnd, libvirtEnd, agreement()) }()
				answers := recorded(t, "target.bin")
				for _, f := range recorded(t, "source.bin") {
					if c.until == 0 {
						break
					}
					var in, out []byte
					if err := f.write(source, &out); err != nil {
						t.Fatal(err)
					}
					if _, err := readFrame(libvirt, &in); err != nil {
						t.Fatal(err)
					}
					if f.kind != kindCall {
						continue
					}
					if f.procedure == procPrepareTunnel || f.procedure == procFinish {
						time.Sleep(work) //nolint:forbidigo // virtual time
						began = time.Now()
					}
					reply := answers[0]
					answers = answers[1:]
					if reply.kind == kindStream {
						reply, answers = answers[0], answers[1:]
					}
					if err := reply.write(libvirt, &out); err != nil {
						t.Fatal(err)
					}
					if _, err := readFrame(source, &in); err != nil {
						t.Fatal(err)
					}
					if f.procedure == c.until {
						break
					}
				}
				var playing sync.WaitGroup
				playing.Go(func() { // it only pings, and libvirt takes that
					for out := []byte(nil); ping().write(source, &out) == nil; {
						time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
					}
				})
				playing.Go(func() { _, _ = io.Copy(io.Discard, libvirt) })
				err, took := <-errs, time.Since(began)
				playing.Wait()
				if r, is := errors.AsType[*Refusal](err); !is || r.Reason != ReasonIdle {
					t.Errorf("%v", err)
				}
				if took != c.most {
					t.Errorf("ended after %v, want %v", took, c.most)
				}
			})
		})
	}
}

package inpod

import (
	wire "encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// A scripted launcher: the test binary, started with these variables, is a shim with a process
// that stands for QEMU. It carries out requests as the real one does.
const (
	scriptDir      = "VMGRACE_TEST_LAUNCHER"
	scriptVM       = "VMGRACE_TEST_VM"
	scriptIncoming = "VMGRACE_TEST_INCOMING"
)

const (
	memory    = 1 << 20
	slowChunk = 1 << 10 // of a guest with a bandwidth of 1
)

// script is such a launcher.
type script struct {
	sender *signals.Sender
	says   signals.Moving
	guest  *exec.Cmd
	done   uint64

	paused  bool // by its user, or on arrival
	stopped bool // by a request
	conn    net.Conn
	chunk   int
	arrived chan bool
}

// launcher runs a scripted launcher until its guest ends.
func launcher(dir string) int {
	s := &script{guest: exec.Command("sleep", "300"), arrived: make(chan bool, 1)}
	s.says = signals.Moving{Able: signals.AbleOK, Machine: signals.Machine{Type: "pc-q35-7.2", Accelerator: "tcg", CPU: "qemu64"}}
	if os.Getenv(scriptIncoming) != "" {
		s.says.State = signals.StateSetup
	}
	s.sender = signals.NewSender(dir, signals.VM{Namespace: "ns", Name: os.Getenv(scriptVM), UID: "u-1", Asking: signals.Asking{Asks: signals.AsksLauncher}})
	pauses, ends := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(pauses, syscall.SIGUSR1)
	if s.guest.Start() != nil || s.sender.Register() != nil || s.sender.TellMoving(s.says) != nil || s.sender.Tell(s.guest.Process.Pid, 0, "") != nil {
		return 1
	}
	go func() { _ = s.guest.Wait(); close(ends) }() // killed: always an error
	for {
		select {
		case <-ends:
			_ = s.sender.Withdraw() // the directory may be gone
			return 0
		case <-pauses:
			s.paused = true
		case whole := <-s.arrived:
			if s.says.State, s.paused = signals.StateArrived, true; !whole {
				_ = s.guest.Process.Kill() // as QEMU ends
			}
		case <-time.After(2 * time.Millisecond):
		}
		if s.turn() != nil {
			return 1
		}
	}
}

// turn takes a request, sends a part of the guest, and tells.
func (s *script) turn() error {
	r, err := s.sender.MoveRequested()
	if err != nil {
		return err
	}
	if r.Request > s.done {
		s.done, s.says.Requested, s.says.Result = r.Request, r.Request, signals.ResultOK
		if err := s.carryOut(r); err != nil {
			s.says.Result = err.Error()
		}
	}
	s.send()
	s.says.Guest = signals.GuestRunning
	if s.paused || s.stopped {
		s.says.Guest = signals.GuestPaused
	}
	return s.sender.TellMoving(s.says)
}

func (s *script) carryOut(r grace.MoveRequest) (err error) {
	switch r.Do {
	case grace.MoveMigrate, grace.MoveIncoming:
		if s.conn, err = net.Dial("unix", filepath.Join(os.Getenv(scriptDir), signals.FileMigration)); err != nil {
			return err
		}
		s.says.State = signals.StateActive
		if r.Do == grace.MoveIncoming {
			go s.receive(s.conn)
			s.conn = nil
			return nil
		}
		s.says.Total, s.says.Remaining, s.chunk = memory, memory, memory
		if r.Bandwidth == 1 {
			s.chunk = slowChunk
		}
		return wire.Write(s.conn, wire.BigEndian, uint64(memory))
	case grace.MovePause:
		s.stopped, s.says.State = true, signals.StatePaused
	case grace.MoveCancel:
		s.end(signals.StateCancelled, "cancelled")
	case grace.MoveCont:
		s.paused, s.stopped = false, false
		if s.says.State == signals.StateArrived || s.says.State == signals.StateCompleted {
			s.says.State = signals.StateRunning
		}
	case grace.MoveLook:
	default:
		return errors.New("this shim cannot do that")
	}
	return nil
}

func (s *script) send() {
	if s.conn == nil {
		return
	}
	n := min(s.chunk, int(s.says.Remaining))
	if _, err := s.conn.Write(make([]byte, n)); err != nil {
		s.end(signals.StateFailed, err.Error())
		return
	}
	if s.says.Remaining -= uint64(n); s.says.Remaining == 0 {
		s.end(signals.StateCompleted, "")
		s.stopped, s.says.Downtime = true, 1
	}
}

func (s *script) end(state signals.MoveState, reason string) {
	if s.conn != nil {
		_ = s.conn.Close() // the other side sees how much came
		s.conn, s.stopped, s.says.State, s.says.Reason = nil, false, state, reason
	}
}

func (s *script) receive(c net.Conn) {
	var size uint64
	err := wire.Read(c, wire.BigEndian, &size)
	n, copyErr := io.Copy(io.Discard, c)
	s.arrived <- err == nil && copyErr == nil && n == int64(size)
}

// script starts a scripted launcher of a domain's VM.
func (w *world) script(t *testing.T, name string, more ...string) *exec.Cmd {
	t.Helper()
	_, vm, _ := grace.SplitDomainName(name)
	shim := exec.Command(os.Args[0])
	shim.Env = append(append(os.Environ(), scriptDir+"="+filepath.Join(w.base, name), scriptVM+"="+vm), more...)
	kit.Must(t, shim.Start())
	ended := sync.OnceFunc(func() { _ = shim.Wait() }) // it may have been killed
	w.shims[name] = shim
	t.Cleanup(func() {
		if v := w.vm(name); v != nil { // a test may have taken the directory away
			if i, runs := v.known(); runs {
				_ = syscall.Kill(i.PID, syscall.SIGKILL)
			}
		}
		_ = shim.Process.Kill()
		ended()
	})
	w.waitKnown(t, name)
	return shim
}

// waitKnown waits until the VM's process is known.
func (w *world) waitKnown(t *testing.T, name string) {
	t.Helper()
	kit.Eventually(t, "its process is known", func() bool {
		v := w.vm(name)
		if v == nil {
			return false
		}
		_, err := v.Look()
		kit.Must(t, err)
		_, runs := v.known()
		return runs
	})
}

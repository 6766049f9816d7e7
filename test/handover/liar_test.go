//go:build !unit

package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/node"
)

// A liar is this binary, started with these variables as a launcher's shim. A process of its own
// stands for QEMU.
const (
	liarDir      = "VMGRACE_TEST_LIAR"
	liarVM       = "VMGRACE_TEST_LIAR_VM" // name and UID
	liarDoes     = "VMGRACE_TEST_LIAR_DOES"
	liarLike     = "VMGRACE_TEST_LIAR_LIKE" // a vm.json that tells the machine
	liarIncoming = "VMGRACE_TEST_LIAR_INCOMING"
)

const (
	lyingMemory = 1 << 20 // of a guest, in bytes
	lyingTurn   = 10 * time.Millisecond
)

// lie starts a liar in a launcher's pod and directory. like is a VM whose machine it has, if any.
func (p *place) lie(w world, does, incoming string, like *vm) {
	w.Helper()
	if err := decoy(p.launcher.Dir, does); err != nil {
		w.Fatal(err)
	}
	cmd := p.Command("sh", node.InPod(w, p.podUID, os.Args[0])...)
	cmd.Env = append(cmd.Env, liarDir+"="+p.launcher.Dir, liarVM+"="+p.launcher.Name+" "+p.launcher.UID, liarDoes+"="+does,
		liarIncoming+"="+incoming)
	if like != nil {
		cmd.Env = append(cmd.Env, liarLike+"="+like.here.launcher.Path("vm.json"))
	}
	shim, err := node.StartProcess(cmd, filepath.Join(w.TempDir(), "liar-"+p.podUID))
	if err != nil {
		w.Fatal(err)
	}
	p.shim = shim
	w.Cleanup(func() {
		shim.Kill()
		if w.Failed() && shim.Log() != "" {
			w.Logf("the liar that does %s: %s", does, shim.Log())
		}
	})
	node.Eventually(w, soon, func() bool { return p.guest() != 0 || !shim.Running() }, "the liar has not begun")
}

// liar is a shim that carries out the agent's requests, or does what it likes.
type liar struct {
	does   string
	dir    string
	sender *signals.Sender
	guest  *exec.Cmd
	says   signals.Moving
	told   signals.Moving
	done   uint64
	turns  int
	mute   bool
	events chan func(*liar) // what its goroutines have found
}

func lieIn(dir string) int {
	name, uid, _ := strings.Cut(os.Getenv(liarVM), " ")
	l := &liar{does: os.Getenv(liarDoes), dir: dir, guest: exec.Command("sleep", "600"), events: make(chan func(*liar), 16)}
	l.guest.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.says = signals.Moving{Able: signals.AbleOK, Guest: signals.GuestRunning, Machine: machineIn(os.Getenv(liarLike))}
	if os.Getenv(liarIncoming) != "" {
		l.says.State = signals.StateSetup
	}
	l.sender = signals.NewSender(dir, signals.VM{Namespace: "default", Name: name, UID: uid, Asking: signals.Asking{Asks: signals.AsksLauncher}})
	err := l.guest.Start()
	if err == nil {
		err = errors.Join(l.sender.Register(), l.sender.TellMoving(l.says), l.sender.Tell(l.guest.Process.Pid, 0, ""),
			os.WriteFile(filepath.Join(dir, "guest.pid"), fmt.Append(nil, l.guest.Process.Pid), 0o600))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ended := make(chan struct{})
	go func() { _ = l.guest.Wait(); close(ended) }() // killed: always an error
	for tick := time.NewTicker(lyingTurn); ; {
		select {
		case <-ended:
			_ = l.sender.Withdraw()
			return 0
		case news := <-l.events:
			news(l)
		case <-tick.C:
		}
		if err := l.turn(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

func machineIn(vmJSON string) signals.Machine {
	if vmJSON == "" {
		return signals.Machine{Type: "pc-q35-7.2", Accelerator: "tcg", CPU: "qemu64"}
	}
	var vm struct {
		Migration struct{ Machine signals.Machine }
	}
	text, err := os.ReadFile(vmJSON)
	if err == nil {
		err = json.Unmarshal(text, &vm)
	}
	if err != nil || vm.Migration.Machine.Type == "" {
		fmt.Fprintf(os.Stderr, "no machine in %s: %v: %s\n", vmJSON, err, text)
	}
	return vm.Migration.Machine
}

func (l *liar) turn() error {
	if l.mute {
		return nil
	}
	l.turns++
	r, err := l.sender.MoveRequested()
	if err != nil {
		return err
	}
	switch l.does {
	case "answers": // to a request that was not made
		lie := l.says
		lie.Requested, lie.Result = r.Request+1e15, "no"
		if err := l.sender.TellMoving(lie); err != nil {
			return err
		}
	case "changes":
		for n := range 100 {
			lie := l.says
			lie.Able, lie.Reason = fmt.Sprint("not now: ", n), strings.Repeat("x", n)
			if err := l.sender.TellMoving(lie); err != nil {
				return err
			}
		}
	case "endless", "stalls": // and says that it makes progress
		if l.says.Remaining > 0 {
			l.says.Remaining--
		}
	}
	if r.Request > l.done {
		l.done, l.says.Requested, l.says.Result = r.Request, r.Request, signals.ResultOK
		if err := l.carryOut(r.Do); err != nil {
			l.says.Result = err.Error()
		}
	}
	if l.says == l.told && l.does != "changes" && l.does != "answers" {
		return nil
	}
	l.told = l.says
	return l.sender.TellMoving(l.says)
}

func (l *liar) carryOut(do grace.Move) error {
	switch do {
	case grace.MoveMigrate:
		return l.send()
	case grace.MoveIncoming:
		return l.receive()
	case grace.MoveCancel:
		if l.does == "endless" || l.does == "stalls" {
			return nil // and does nothing
		}
		l.says.State = signals.StateCancelled
	case grace.MoveCont:
		l.says.Guest = signals.GuestRunning
		if l.says.State == signals.StateArrived || l.says.State == signals.StateCompleted {
			l.says.State = signals.StateRunning
		}
	default:
	}
	return nil
}

// whole says that all was sent.
func (l *liar) whole() {
	l.says.State, l.says.Guest, l.says.Remaining = signals.StateCompleted, "postmigrate", 0
}

func (l *liar) send() error {
	switch l.does {
	case "completed":
		l.whole()
		return nil
	case "swaps":
		err := errors.Join(os.Remove(filepath.Join(l.dir, signals.FileMigration)), decoy(l.dir, "directory"))
		l.whole()
		return err
	}
	c, err := l.connect()
	if err != nil {
		return err
	}
	l.says.State, l.says.Total, l.says.Remaining = signals.StateActive, 1<<62, 1<<61
	size := binary.BigEndian.AppendUint64(nil, lyingMemory)
	switch l.does {
	case "stalls":
		_, err = c.Write(size)
	case "endless", "completed endless":
		go forEver(c)
		if l.does != "endless" {
			l.later(2*time.Second, (*liar).whole)
		}
	case "second":
		go forEver(c)
		// The other shim takes the lock, and tells of another process.
		other := exec.Command(os.Args[0])
		other.Env = append(os.Environ(), liarDoes+"=honest")
		other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		l.later(time.Second, func(l *liar) { l.mute = l.sender.Withdraw() == nil && other.Start() == nil })
	case "random":
		go l.write(c, nil, 64<<20)
	case "silent":
		_, err = c.Write(append(size, make([]byte, lyingMemory/2)...))
		_ = c.Close()
		l.whole()
		l.later(0, func(l *liar) { l.mute = true })
	default:
		go l.write(c, append(size, make([]byte, lyingMemory)...), 0)
	}
	return err
}

func (l *liar) later(after time.Duration, do func(*liar)) {
	go func() { <-time.After(after); l.events <- do }()
}

// write writes a text and so much noise, and tells.
func (l *liar) write(c net.Conn, text []byte, more int) {
	_, err := c.Write(text)
	for b := make([]byte, 64<<10); err == nil && more > 0; more -= len(b) {
		noise(b)
		_, err = c.Write(b)
	}
	_ = c.Close() // the other side sees how much came
	l.events <- func(l *liar) {
		if l.whole(); err != nil {
			l.says.State, l.says.Guest, l.says.Reason = signals.StateFailed, signals.GuestRunning, err.Error()
		}
	}
}

func forEver(c net.Conn) {
	for b := make([]byte, 64<<10); ; {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

func (l *liar) receive() error {
	if l.does == "arrived" {
		l.says.State, l.says.Guest = signals.StateArrived, signals.GuestPaused
		return nil
	}
	c, err := l.connect()
	if err != nil {
		return err
	}
	l.says.State = signals.StateActive
	if l.does == "stalls" {
		return nil
	}
	go func() {
		var size uint64
		err := binary.Read(c, binary.BigEndian, &size)
		n, copyErr := io.Copy(io.Discard, c)
		l.events <- func(l *liar) {
			switch {
			case l.does == "for ever":
			case err == nil && copyErr == nil && n == int64(size):
				l.says.State, l.says.Guest = signals.StateArrived, signals.GuestPaused
			default:
				_ = l.guest.Process.Kill() // as QEMU ends
			}
		}
	}()
	return nil
}

// connect connects to the agent's socket, whose path is too long.
func (l *liar) connect() (net.Conn, error) {
	f, err := l.sender.ConnectMigration()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileConn(f)
}

package deadline

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

func now() grace.Mono {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return grace.Mono(t.Nano())
}

// start starts a thread that ends with the test.
func start(t *testing.T) (thread *Thread, said *bytes.Buffer) {
	t.Helper()
	said = &bytes.Buffer{}
	thread, err := Start(slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := thread.Close(); err != nil {
			t.Error(err)
		}
	})
	return thread, said
}

// child returns a process that lives until it is signalled. ended returns the signal.
func child(t *testing.T) (p *process.Process, ended func() syscall.Signal) {
	t.Helper()
	return shell(t, "echo; exec sleep infinity")
}

// shell runs a command that prints a line once it is ready.
func shell(t *testing.T, command string) (p *process.Process, ended func() syscall.Signal) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	start, err := process.Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = process.Open(cmd.Process.Pid, start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, func() syscall.Signal {
		_ = cmd.Wait()
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		return status.Signal()
	}
}

func arm(t *testing.T, thread *Thread, p *process.Process, at grace.Mono) *Armed {
	t.Helper()
	armed, err := thread.Arm(p, at)
	if err != nil {
		t.Fatal(err)
	}
	return armed
}

// open counts the descriptors of this process.
func open(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestManyDeadlinesAreEachSignalledOnceAndNeverEarly(t *testing.T) {
	thread, _ := start(t)
	type vm struct {
		armed *Armed
		at    grace.Mono
		ended func() syscall.Signal
	}
	begin := now()
	vms := make([]vm, 30)
	for i := range vms {
		at := begin.Add(time.Duration(i%3) * 150 * time.Millisecond) // some are due already
		p, ended := child(t)
		vms[i] = vm{arm(t, thread, p, at), at, ended}
	}
	for _, v := range vms {
		if s := <-v.armed.Sent(); s.Err != nil || s.At < v.at {
			t.Errorf("sent %v after the deadline, %v", s.At.Sub(v.at), s.Err)
		}
		if got := v.ended(); got != syscall.SIGTERM {
			t.Errorf("ended by %v", got)
		}
		if v.armed.Disarm() {
			t.Error("disarmed after the signal")
		}
	}
}

func TestADeadlineMoves(t *testing.T) {
	thread, _ := start(t)
	p, ended := child(t)
	armed := arm(t, thread, p, now().Add(time.Hour))
	to := now().Add(50 * time.Millisecond)
	armed.Move(to)
	if s := <-armed.Sent(); s.Err != nil || s.At < to {
		t.Errorf("sent %v after the deadline, %v", s.At.Sub(to), s.Err)
	}
	if got := ended(); got != syscall.SIGTERM {
		t.Errorf("ended by %v", got)
	}
}

func TestWhatIsDisarmedIsNotSignalledAndItsPidfdClosed(t *testing.T) {
	thread, _ := start(t)
	p, _ := child(t)
	other, _ := child(t)
	before := open(t)
	armed := arm(t, thread, p, now().Add(50*time.Millisecond))
	if once, again := armed.Disarm(), armed.Disarm(); !once || !again {
		t.Fatal("not disarmed")
	}
	// A later deadline has passed, so this one has, too.
	<-arm(t, thread, other, now().Add(100*time.Millisecond)).Sent()
	select {
	case s := <-armed.Sent():
		t.Errorf("sent: %+v", s)
	default:
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, and %d were", now, before)
	}
}

func TestAProcessThatHasEndedIsNotSignalled(t *testing.T) {
	thread, _ := start(t)
	p, _ := child(t)
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if s := <-arm(t, thread, p, now()).Sent(); !errors.Is(s.Err, process.ErrGone) { // a zombie
		t.Errorf("%v", s.Err)
	}
}

func TestDisarmAndSignalExcludeEachOther(t *testing.T) {
	thread, _ := start(t)
	for i := range 50 {
		p, ended := child(t)
		armed := arm(t, thread, p, now().Add(time.Duration(i)*10*time.Microsecond))
		if !armed.Disarm() {
			<-armed.Sent()
			if got := ended(); got != syscall.SIGTERM {
				t.Errorf("not disarmed, ended by %v", got)
			}
		}
	}
}

// wantPriority is set where the thread must have its priority.
const wantPriority = "DEADLINE_WANT_PRIORITY"

func TestOnlyTheDeadlineThreadIsARealTimeOne(t *testing.T) {
	_, said := start(t)
	if os.Getenv(wantPriority) != "" && said.Len() != 0 {
		t.Error(said)
	}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, task := range tasks {
		name, err := os.ReadFile(filepath.Join(task, "comm"))
		if err != nil {
			continue // it has ended
		}
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			t.Fatal(err)
		}
		refused := strings.Contains(said.String(), "no real-time priority")
		switch {
		case strings.TrimSpace(string(name)) != "deadline":
			if attr.Policy != unix.SCHED_NORMAL {
				t.Errorf("%s has policy %d", name, attr.Policy)
			}
			continue
		case refused && attr.Policy != unix.SCHED_NORMAL,
			!refused && (attr.Policy != unix.SCHED_RR || attr.Priority != 1) && attr.Policy != unix.SCHED_DEADLINE:
			t.Errorf("policy %d, priority %d, refused %t", attr.Policy, attr.Priority, refused)
		}
		found++
	}
	if found == 0 {
		t.Error("no deadline thread") // one that is just ending may be there, too
	}
}

// A kernel with CONFIG_RT_GROUP_SCHED gives no container with the controller cpu SCHED_RR.
func TestTheThreadHasPriorityInAContainersCgroup(t *testing.T) {
	top := "/sys/fs/cgroup"
	if controllers, err := os.ReadFile(filepath.Join(top, "cgroup.subtree_control")); err != nil || !slices.Contains(strings.Fields(string(controllers)), "cpu") {
		top = filepath.Join(top, "cpu")
		if _, err := os.Stat(filepath.Join(top, "cpu.rt_runtime_us")); err != nil || os.Getuid() != 0 {
			t.Skip("this kernel refuses no cgroup SCHED_RR, or this is not root")
		}
	}
	cgroup := filepath.Join(top, "vmgrace-deadline-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Skip("cgroups cannot be made here: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup,
		os.Args[0], "-test.v", "-test.run=^TestOnlyTheDeadlineThreadIsARealTimeOne$")
	cmd.Env = append(os.Environ(), wantPriority+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCloseSendsNothingAndLeavesNothing(t *testing.T) {
	p, _ := child(t)
	before := open(t)
	thread, err := Start(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	armed := arm(t, thread, p, now().Add(time.Hour))
	if err := thread.Close(); err != nil {
		t.Fatal(err)
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, and %d were", now, before)
	}
	select {
	case s := <-armed.Sent():
		t.Errorf("sent: %+v", s)
	default:
	}
}

// deaf returns a process that SIGTERM does not end.
func deaf(t *testing.T) *process.Process {
	t.Helper()
	p, _ := shell(t, "trap '' TERM; echo; exec sleep infinity")
	return p
}

// A keeper moves its own deadline to now at the very moment in which the signal is sent
// anyway.
func TestAMoveNeverTouchesAnotherVMsDeadline(t *testing.T) {
	const rounds = 1000
	thread, _ := start(t)
	due, later := deaf(t), deaf(t)
	var moving sync.WaitGroup
	for range 3 {
		moving.Go(func() {
			for range rounds {
				at := now()
				armed, err := thread.Arm(due, at)
				if err != nil {
					t.Error(err)
					return
				}
				for sent := false; !sent; {
					select {
					case <-armed.Sent():
						sent = true
					default:
						armed.Move(at)
					}
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { moving.Wait(); close(over) }()
	for early := 0; early < 3; {
		armed := arm(t, thread, later, now().Add(time.Hour))
		runtime.Gosched()
		if !armed.Disarm() {
			early++
			t.Errorf("signalled an hour early: %+v", <-armed.Sent())
		}
		select {
		case <-over:
			return
		default:
		}
	}
	<-over
}

func TestTheThreadArmsAllAndGivesBackAllWhileItIsBusy(t *testing.T) {
	const rounds, vms = 30, 50
	thread, _ := start(t)
	p, q := deaf(t), deaf(t)
	before := open(t)
	for range rounds {
		soon := now().Add(time.Millisecond)
		var all []*Armed
		for range vms {
			all = append(all, arm(t, thread, p, soon))
		}
		hour := arm(t, thread, q, soon.Add(time.Hour))
		for _, a := range all {
			a.Move(soon)
		}
		for _, a := range all {
			if s := <-a.Sent(); s.Err != nil || s.At < soon {
				t.Errorf("sent %v after the deadline, %v", s.At.Sub(soon), s.Err)
			}
			a.Move(soon) // it is over: nothing is moved
		}
		if !hour.Disarm() {
			t.Fatalf("signalled an hour early: %+v", <-hour.Sent())
		}
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, and %d were", now, before)
	}
}

func TestAThreadThatHasEndedArmsNothing(t *testing.T) {
	p, _ := child(t)
	thread, err := Start(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	armed := arm(t, thread, p, now().Add(time.Hour))
	for range 2 {
		if err := thread.Close(); err != nil {
			t.Fatal(err)
		}
	}
	before := open(t)
	armed.Move(now())
	if !armed.Disarm() {
		t.Error("it counts as sent")
	}
	if _, err := thread.Arm(p, now()); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, and %d were", now, before)
	}
}

// docs/operations.md describes the effect on a suspended node.
func TestTheDeadlinesClockStandsStillInSuspend(t *testing.T) {
	start(t)
	fds, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	timers := 0
	for _, fd := range fds {
		text, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", fd.Name())) // some are closed by now
		_, clock, timer := strings.Cut(string(text), "\nclockid: ")
		if !timer {
			continue
		}
		timers++
		if id, _, _ := strings.Cut(clock, "\n"); id != strconv.Itoa(unix.CLOCK_MONOTONIC) {
			t.Errorf("the timer is of clock %s, not of CLOCK_MONOTONIC", id)
		}
	}
	if timers == 0 {
		t.Error("the thread has no timer")
	}
}

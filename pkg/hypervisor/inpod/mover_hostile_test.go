package inpod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/kit"
)

// lying is a launcher directory in which a test changes what the launcher says.
type lying struct {
	Directory

	mu     sync.Mutex
	change func(*watch.View)
}

func (l *lying) Look() (watch.View, error) {
	view, err := l.Directory.Look()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.change != nil {
		l.change(&view)
	}
	return view, err
}

func (l *lying) says(change func(*watch.View)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change = change
}

// lying makes the launcher directory of a liar.
func (w *world) lying(t *testing.T) (domain string, l *lying) {
	t.Helper()
	domain = grace.DomainName("ns", "liar")
	kit.Must(t, os.Mkdir(filepath.Join(w.base, domain), 0o755))
	l = &lying{Directory: watch.Directory{Base: w.base, Name: domain, Namespace: "ns", VM: "liar"}}
	w.Directory(domain, "", l)
	return domain, l
}

// lies is a scripted launcher that has stopped. Its test says what it says.
func lies(t *testing.T) (w *world, m *Mover, l *lying, domain string, i grace.Instance) {
	t.Helper()
	w, m = host(t, false)
	domain, l = w.lying(t)
	shim := w.script(t, domain)
	kit.Eventually(t, "it runs", func() bool {
		stay, is, err := m.Look(t.Context(), domain)
		i = is
		return err == nil && stay == hypervisor.StayRunning
	})
	freeze(t, shim.Process)
	return w, m, l, domain, i
}

// status returns status.json.
func (w *world) status(domain string) string {
	return content(filepath.Join(w.base, domain, signals.FileStatus))
}

func TestAQEMUThatWaitsIsNoVMAndEndsWithItsPod(t *testing.T) {
	// Given: the launcher of a migration's target
	w, m := host(t, true)
	domain, _ := w.directory(t, "")
	w.script(t, domain, scriptIncoming+"=1")
	// Then
	if d, err := w.Get(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("%+v, %v", d, err)
	}
	if all, err := w.List(t.Context(), func(string) bool { return true }); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	stay, i, err := m.Look(t.Context(), domain)
	if stay != hypervisor.StayWaiting || i.PID == 0 || err != nil || !w.Claims(domain) {
		t.Errorf("it is %q, %+v, %v", stay, i, err)
	}
	// QEMU would let a guest run as soon as it arrives.
	if err := m.Resume(t.Context(), domain, i); !errors.Is(err, hypervisor.ErrState) {
		t.Errorf("resume what waits: %v", err)
	}
	if err := w.Resume(t.Context(), domain, i); !errors.Is(err, hypervisor.ErrState) {
		t.Errorf("resume what waits, for a shutdown: %v", err)
	}
	// When its pod is to end
	kit.Write(t, filepath.Join(w.base, domain, signals.FileTrigger), "")
	// Then it ends at once, and the agent is never shown a VM
	kit.Eventually(t, "it ends", func() bool {
		if d, err := w.Get(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotFound) {
			t.Fatalf("%+v, %v", d, err)
		}
		return errors.Is(process.Check(i.PID, i.Start), process.ErrGone)
	})
}

// Given a target's launcher whose shim does not know of migrations, so that its QEMU runs the guest of the
// source a second time. Then that ends at once, the agent is never shown a VM, and its log says why.
func TestASecondGuestInATargetEndsAtOnce(t *testing.T) {
	w, m := host(t, true)
	domain, l := w.lying(t)
	w.script(t, domain, scriptIncoming+"=1")
	v := w.vm(domain)
	i, _ := v.known()
	l.says(func(v *watch.View) { v.Migration = signals.Moving{} })
	view, err := v.Look()
	kit.Must(t, err)
	if len(view.Rejected) != 1 || !errors.Is(view.Rejected[0].Err, errUnsent) {
		t.Errorf("%+v", view.Rejected)
	}
	kit.Eventually(t, "it ends", func() bool {
		if d, err := w.Get(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotFound) {
			t.Fatalf("%+v, %v", d, err)
		}
		return errors.Is(process.Check(i.PID, i.Start), process.ErrGone)
	})
	if stay, _, err := m.Look(t.Context(), domain); stay != hypervisor.StayAbsent || err != nil {
		t.Errorf("it is %q, %v", stay, err)
	}
}

func TestALauncherOfNoTargetDoesNotHideItsGuest(t *testing.T) {
	w, m := host(t, false)
	domain, _ := w.directory(t, "")
	w.script(t, domain, scriptIncoming+"=1")
	d, err := w.Get(t.Context(), domain)
	if err != nil || d.Power != grace.PowerOn {
		t.Errorf("%+v, %v", d, err)
	}
	if stay, _, err := m.Look(t.Context(), domain); stay != hypervisor.StayUnknown || err != nil {
		t.Errorf("it is %q, %v", stay, err)
	}
	if err := m.Receive(t.Context(), domain); !errors.Is(err, hypervisor.ErrState) {
		t.Errorf("it receives: %v", err)
	}
}

func TestAGuestThatWasSentAndKilledWasNotShutDown(t *testing.T) {
	_, m, l, domain, i := lies(t)
	l.says(func(v *watch.View) { v.Migration.State = signals.StateCompleted })
	if stay, _, err := m.Look(t.Context(), domain); stay != hypervisor.StayLeft || err != nil {
		t.Fatalf("it is %q, %v", stay, err)
	}
	kit.Must(t, syscall.Kill(i.PID, syscall.SIGKILL))
	kit.Eventually(t, "its end is known", func() bool {
		end, err := m.Ended(t.Context(), domain, i)
		kit.Must(t, err)
		if end == grace.EndGuest || end == grace.EndMoved {
			t.Fatalf("it ended as %q", end)
		}
		return end == grace.EndDestroyed
	})
}

func TestTheAgentsStatusKeepsTheLastRequest(t *testing.T) {
	w, m, _, domain, i := lies(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- m.Resume(ctx, domain, i) }()
	kit.Eventually(t, "it is asked", func() bool { return strings.Contains(w.status(domain), `"do":"cont"`) })
	kit.Must(t, w.vm(domain).WriteStatus(grace.Status{UID: "u-1", Phase: grace.ShuttingDown, Message: "hello"}))
	if s := w.status(domain); !strings.Contains(s, `"do":"cont"`) || !strings.Contains(s, "hello") {
		t.Errorf("%s", s)
	}
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestALaunchersWordCountsOnlyForTheProcessThatItNamed(t *testing.T) {
	// Given a second shim, which holds the lock now
	_, m, l, domain, i := lies(t)
	l.says(func(v *watch.View) { v.Holder.PID, v.Migration.State = v.Holder.PID+1, signals.StateCompleted })
	// Then
	if stay, is, err := m.Look(t.Context(), domain); stay != hypervisor.StayUnknown || is != i || err != nil {
		t.Errorf("it is %q, %+v, %v", stay, is, err)
	}
	if err := m.Resume(t.Context(), domain, i); !errors.Is(err, errOther) {
		t.Errorf("resume: %v", err)
	}
	if err := m.Abort(t.Context(), domain, i); !errors.Is(err, hypervisor.ErrState) {
		t.Errorf("abort: %v", err)
	}
	kit.Must(t, m.Remove(t.Context(), domain, i))
	kit.Eventually(t, "its process ends", func() bool { _, runs := m.vm(domain).known(); return !runs })
}

func TestAnExchangedPodIsAnother(t *testing.T) {
	w, m, l, domain, i := lies(t)
	old := w.vm(domain)
	w.Directory(domain, pod, l)
	if err := m.Remove(t.Context(), domain, i); !errors.Is(err, hypervisor.ErrOtherInstance) {
		t.Errorf("remove: %v", err)
	}
	if err := m.Migrate(t.Context(), hypervisor.Outgoing{Domain: domain, Instance: i}); !errors.Is(err, hypervisor.ErrOtherInstance) {
		t.Errorf("migrate: %v", err)
	}
	// Its process is not in that pod. Nobody says that there is none.
	if stay, is, err := m.Look(t.Context(), domain); stay != hypervisor.StayUnknown || is != (grace.Instance{}) || err == nil {
		t.Errorf("it is %q, %+v, %v", stay, is, err)
	}
	w.mu.Lock()
	w.vms[domain] = old // for the end of the test
	w.mu.Unlock()
}

func TestWhatCannotBeReadIsNotAbsent(t *testing.T) {
	w, m, _, domain, i := lies(t)
	path := filepath.Join(w.base, domain)
	kit.Must(t, os.Rename(path, path+".away"))
	kit.Must(t, os.WriteFile(path, nil, 0o600))
	if stay, _, err := m.Look(t.Context(), domain); stay != hypervisor.StayUnknown || !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("it is %q, %v", stay, err)
	}
	if _, err := m.Listen(domain); err == nil {
		t.Error("there is a socket")
	}
	kit.Must(t, syscall.Kill(i.PID, syscall.SIGKILL))
	kit.Eventually(t, "it is gone", func() bool { _, runs := w.vm(domain).known(); return !runs })
	if stay, _, err := m.Look(t.Context(), domain); stay != hypervisor.StayUnknown || err == nil {
		t.Errorf("it is %q, %v", stay, err)
	}
	// A directory that nobody has looked at says nothing either: its pod is there.
	kit.Must(t, os.Mkdir(filepath.Join(w.base, "ns_new"), 0o755))
	if stay, _, err := m.Look(t.Context(), "ns_new"); stay != hypervisor.StayUnknown || !errors.Is(err, errNotSeen) {
		t.Errorf("a new one is %q, %v", stay, err)
	}
	kit.Must(t, os.Remove(path))
	kit.Must(t, os.Rename(path+".away", path))
}

func TestALauncherThatIsTooOldIsNotAsked(t *testing.T) {
	w, m, l, domain, i := lies(t)
	before := w.status(domain)
	l.says(func(v *watch.View) { v.Migration = signals.Moving{} })
	if err := m.Resume(t.Context(), domain, i); !errors.Is(err, errTooOld) {
		t.Errorf("%v", err)
	}
	if after := w.status(domain); after != before {
		t.Errorf("it was asked by %s", after)
	}
	if is := m.Machine(domain); is != "" {
		t.Errorf("its machine is %q", is)
	}
}

func TestAnEndDuringAMigrationIsAnError(t *testing.T) {
	_, m, l, domain, i := lies(t)
	l.says(func(v *watch.View) {
		v.Migration.State, v.Migration.Requested, v.Migration.Result = signals.StateActive, 1<<63, "later"
	})
	over := make(chan error, 1)
	go func() { over <- m.Migrate(t.Context(), hypervisor.Outgoing{Domain: domain, Instance: i}) }()
	kit.Eventually(t, "it is asked", func() bool { return m.lastMove(domain).Do == grace.MoveMigrate })
	select {
	case err := <-over:
		t.Fatalf("an answer to a request that was not made counts: %v", err)
	default:
	}
	l.says(func(v *watch.View) {
		v.Migration.State, v.Migration.Requested, v.Migration.Result = signals.StateActive, m.lastMove(domain).Request, signals.ResultOK
	})
	kit.Eventually(t, "it is being sent", func() bool {
		_, err := m.Progress(t.Context(), domain, i)
		return err == nil
	})
	kit.Must(t, syscall.Kill(i.PID, syscall.SIGKILL))
	if err := <-over; !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func (m *Mover) lastMove(domain string) grace.MoveRequest {
	v := m.vm(domain)
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moves.asked
}

func TestAFloodOfWordsCostsNoMemory(t *testing.T) {
	// Given a request that is not answered
	w, m, _, domain, i := lies(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- m.Resume(ctx, domain, i) }()
	kit.Eventually(t, "it is asked", func() bool { return m.lastMove(domain).Do == grace.MoveCont })
	v := w.vm(domain)
	view, err := v.Directory.Look()
	kit.Must(t, err)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	// When its launcher says something else all the time
	for n := range 50_000 {
		view.Migration.Remaining, view.Migration.Reason = uint64(n), strings.Repeat("x", n%200)
		v.learn(&view)
	}
	// Then
	runtime.GC()
	runtime.ReadMemStats(&after)
	if more := int64(after.HeapAlloc) - int64(before.HeapAlloc); more > 1<<20 {
		t.Errorf("%d bytes more", more)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 5 {
		t.Errorf("%d goroutines more", more)
	}
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

//go:build !unit

package priority

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

var start = time.Now()

func now() grace.Mono { return grace.Mono(time.Since(start)) }

// policies counts the threads by their policy.
func policies(t *testing.T) map[uint32]int {
	t.Helper()
	entries, err := os.ReadDir(threads)
	if err != nil {
		t.Fatal(err)
	}
	count := map[uint32]int{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if attr, err := unix.SchedGetAttr(id, 0); err == nil {
			count[attr.Policy]++
		}
	}
	return count
}

func all(t *testing.T, policy uint32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		count := policies(t)
		if len(count) == 1 && count[policy] > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("threads by policy: %v, want all to have %d", count, policy)
		}
	}
}

func TestAllThreadsGoFirstForAsLongAsTheyAreToldTo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := New(now, slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	// Given: nobody is in a hurry.
	all(t, unix.SCHED_NORMAL)
	for range 3 {
		// When one is, and another for less long, then all threads go first, also
		// one that is made meanwhile.
		done := p.First(now().Add(time.Hour))
		p.First(now())
		p.First(now().Add(time.Hour))()
		all(t, unix.SCHED_RR)
		release := make(chan struct{})
		made := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(made)
			<-release
		}()
		<-made
		all(t, unix.SCHED_RR)
		// Then, when that is over, no thread does.
		done()
		done()
		all(t, unix.SCHED_NORMAL)
		close(release)
	}
	// When the time that was asked for is over, nobody has to say so, and who
	// asked for more and does not need it has no say.
	more := p.First(now().Add(time.Hour))
	p.First(now().Add(20 * time.Millisecond))
	all(t, unix.SCHED_RR)
	more()
	all(t, unix.SCHED_NORMAL)
	// Then the end leaves no thread behind that goes first.
	p.First(now().Add(time.Hour))
	all(t, unix.SCHED_RR)
	cancel()
	running.Wait()
	all(t, unix.SCHED_NORMAL)
}

// refused is set in a process that may not do it.
const refused = "VMGRACE_TEST_WITHOUT_SYS_NICE"

func TestWhereTheKernelRefusesThatIsSaidOnce(t *testing.T) {
	if os.Getenv(refused) == "" {
		runtime.LockOSThread() // and it ends with this test
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_NICE, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), refused+"=yes")
		if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	said := make(lines, 100)
	p := New(now, slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	warned := 0
	for range 2 {
		done := p.First(now().Add(time.Hour))
		warned += said.until(t, "going before others")
		done()
		all(t, unix.SCHED_NORMAL)
	}
	cancel()
	running.Wait()
	if _, err := said.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	if warned += said.until(t, "the end"); warned != 1 {
		t.Errorf("warned %d times, want once", warned)
	}
}

// lines is a log, a line each.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// until reads on to a text, and counts the warnings before it.
func (l lines) until(t *testing.T, text string) (warned int) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return warned
			}
			if strings.Contains(line, "cannot go before others") {
				warned++
			}
		case <-late:
			t.Fatalf("not said: %s", text)
		}
	}
}

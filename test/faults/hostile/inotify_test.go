package hostile

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// found bounds how soon the agent finds a trigger without the help of inotify: a second,
// and half a second for a busy machine.
const found = time.Second + 500*ms

// inTime checks that a trigger is found soon enough. The lateness of the machine, on which
// other tests kill agents meanwhile, is added twice: for the agent and for the test.
func inTime(t *testing.T, n *node.Node, find func() time.Duration) {
	t.Helper()
	begin := time.Now()
	took, late := find(), n.Late(begin, time.Now())
	if t.Logf("found after %v", took); took > found+2*late {
		t.Errorf("found after %v, want %v and twice the %v that the machine was late", took, found, late)
	}
}

func TestEventsThatInotifyLostAreMadeUpFor(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	l := neighbour(t, a)
	noise := a.LauncherFor(t, "vmgrace-test", "noise", "uid-noise")
	node.WaitUntil(t, time.Now().Add(50*ms))
	if err := a.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 { // each makes at least one event; the queue holds 16,384
		path := noise.Path(fmt.Sprintf("noise-%d", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.Write(t, "shutdown", strangers) // its event is lost
	if err := a.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	inTime(t, n, func() time.Duration { return gone(t, l.Path("shutdown"), soon) })
	a.WaitSaid(t, "inotify lost events", 1)
}

func TestWithoutInotifyTriggersAreFoundAndReadinessSaysSo(t *testing.T) {
	n := node.New(t)
	var taken []int
	release := func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
		taken = nil
	}
	defer release()
	take := func() {
		for {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if errors.Is(err, unix.EMFILE) {
				return // fs.inotify.max_user_instances
			}
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, fd)
		}
	}
	// Given an agent that finds no free inotify instance. The agents of other tests release
	// theirs at any time, so one that finds an instance is killed and another one tried.
	const none, again = "cannot watch launcher directories", "watching launcher directories again"
	var a *node.Agent
	var l *node.Launcher
	for tries, found := 0, true; found; tries++ {
		if tries == 20 {
			t.Fatalf("each of %d agents has found an inotify instance, with %d taken: are there more than this process may have descriptors?", tries, len(taken))
		}
		take()
		a = n.Agent(t).Launch(t)
		node.Eventually(t, soon, func() bool { return a.Said(none) > 0 || a.Ready() }, "the agent comes up")
		if a.Said(none) > 0 {
			l = neighbour(t, a)
			inTime(t, n, func() time.Duration { return answered(t, l, soon) })
			if code, _, err := a.Get(t.Context(), "/livez"); err != nil || code != http.StatusOK {
				t.Errorf("/livez: %d, %v", code, err)
			}
			if a.Ready() {
				a.WaitSaid(t, again, 1) // else it is ready without any watch
			}
		}
		if found = a.Said(none) == 0 || a.Said(again) > 0; found {
			a.Kill()
		}
	}
	release()
	a.WaitSaid(t, again, 1)
	node.Eventually(t, soon, a.Ready, "not ready although there is inotify again")
	inTime(t, n, func() time.Duration { return answered(t, l, soon) })
}

func TestTheLaunchersDirectoryMayBeRemovedRenamedAndMadeAgain(t *testing.T) {
	a := node.New(t).Agent(t).Start(t)
	neighbour(t, a)
	for i, remove := range []func() error{
		func() error { return os.RemoveAll(a.LaunchersDir) },
		func() error { return os.Rename(a.LaunchersDir, a.LaunchersDir+".old") },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		a.WaitSaid(t, "the launchers directory is gone", i+1)
		if err := os.Mkdir(a.LaunchersDir, 0o755); err != nil {
			t.Fatal(err)
		}
		l := a.LauncherFor(t, "vmgrace-test", fmt.Sprintf("again-%d", i), "uid")
		l.Write(t, "vm.json", fmt.Sprintf(`{"version":1,"namespace":"vmgrace-test","name":"again-%d","uid":"uid","gracePeriodSeconds":0}`, i))
		t.Logf("found after %v", answered(t, l, found))
		t.Logf("and after %v", answered(t, l, found))
		a.WaitSaid(t, "the launchers directory is back", i+1)
	}
}

func TestTheLaunchersDirectoryMayBeMountedOverAndUnmounted(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	below := neighbour(t, a)
	run := func(args ...string) {
		t.Helper()
		if out, err := n.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	run("mount", "-t", "tmpfs", "tmpfs", a.LaunchersDir)
	// The mount is in the node's namespace: the test reaches it by the agent's root.
	inside := *a
	inside.LaunchersDir = filepath.Join(fmt.Sprintf("/proc/%d/root", a.PID()), a.LaunchersDir)
	above := inside.LauncherFor(t, "vmgrace-test", "above", "uid")
	above.Write(t, "vm.json", `{"version":1,"namespace":"vmgrace-test","name":"above","uid":"uid","gracePeriodSeconds":0}`)
	t.Logf("found after %v", answered(t, above, found))
	a.WaitSaid(t, "the launchers directory is another one now", 1)
	t.Logf("and after %v", answered(t, above, found))

	run("umount", a.LaunchersDir)
	t.Logf("found after %v", answered(t, below, found))
	a.WaitSaid(t, "the launchers directory is another one now", 2)
	t.Logf("and after %v", answered(t, below, found))
}

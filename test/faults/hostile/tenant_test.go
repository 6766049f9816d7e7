package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// names are the files of a launcher directory, including the agent's temporary ones.
var names = []string{"vm.json", "shutdown", "status.json", ".status.json.agent", ".shutdown.agent"}

// plant replaces each file of the attacker's launcher directory by what put makes.
func (f *field) plant(t *testing.T, put func(path string) error) {
	t.Helper()
	for _, name := range names {
		path := f.attacker.Launcher.Path(name)
		if err := errors.Join(os.RemoveAll(path), put(path)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHostileLauncherDirectoryHurtsNobodyElse(t *testing.T) {
	f := newField(t)
	deep := func(open, end string, n int) string {
		return `{"version":1,"uid":` + strings.Repeat(open, n) + strings.Repeat(end, n) + "}"
	}
	content := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	as := f.bystander
	for _, attack := range []struct {
		name string
		put  func(path string) error
	}{
		{"links outside", func(p string) error { return os.Symlink(filepath.Join(f.outside, "vm.json"), p) }},
		{"links to the bystander", func(p string) error { return os.Symlink(as.Launcher.Path("vm.json"), p) }},
		{"links to nothing outside", func(p string) error { return os.Symlink(filepath.Join(f.outside, "new"), p) }},
		{"links to themselves", func(p string) error { return os.Symlink(filepath.Base(p), p) }},
		{"FIFOs", func(p string) error { return unix.Mkfifo(p, 0o666) }},
		{"devices", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }},
		{"sockets", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o666, 0) }},
		{"full directories", func(p string) error { return os.MkdirAll(filepath.Join(p, "full"), 0o755) }},
		{"64 levels of JSON", content(deep("[", "]", 64))},
		{"30,000 levels of JSON", content(deep("[", "]", 30_000))},
		{"JSON that never ends", content(strings.Repeat(`{"a":`, 13_000))},
		{"1 TiB", func(p string) error { return errors.Join(content("")(p), os.Truncate(p, 1<<40)) }},
		{"a claim to be the bystander", content(fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":%q,"gracePeriodSeconds":0}`,
			as.Namespace, as.Name, as.UID))},
		{"hard links to the bystander", func(p string) error { return os.Link(as.Launcher.Path("vm.json"), p) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			f.plant(t, attack.put)
			f.endures(t)
		})
	}
}

func TestManyFilesAndStrangeNamesHurtNobody(t *testing.T) {
	f := newField(t)
	t.Run("100,000 files", func(t *testing.T) {
		stop := concurrently(func(i int) bool {
			path := f.attacker.Launcher.Path(fmt.Sprintf("file-%d", i))
			return os.WriteFile(path, nil, 0o600) == nil && i < 100_000
		})
		f.endures(t)
		for i := stop(); i < 100_000; i++ {
			if err := os.WriteFile(f.attacker.Launcher.Path(fmt.Sprintf("file-%d", i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f.endures(t)
	})
	t.Run("names", func(t *testing.T) {
		for i, name := range []string{
			"ns_", "_vm", "a b", "ns_vm\nlevel=ERROR msg=forged", "ns_\xff\xfe", "ns_ümläut", "ns_\u202egnp.mv", "NS_VM", "-", "ns__vm",
			strings.Repeat("n", 255), "n_" + strings.Repeat("v", 253), "ns_vm.json", "%s%n", "$(touch x)", "ns_" + strings.Repeat("é", 126),
		} {
			path := filepath.Join(f.a.LaunchersDir, name)
			if err := errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "shutdown"), nil, 0o600)); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		f.endures(t)
		if log := f.a.Log(); strings.Contains(log, "\nlevel=ERROR msg=forged") {
			t.Error("a name has written a line of its own into the log")
		}
	})
}

// concurrently calls work with 0, 1, ... until work returns false or stop is called. stop
// returns the last of these numbers.
func concurrently(work func(i int) bool) (stop func() int) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	i := 0
	wg.Go(func() {
		for ; work(i); i++ {
			select {
			case <-end:
				return
			default:
			}
		}
	})
	return func() int { close(end); wg.Wait(); return i }
}

// storm renames files to name and back, 10,000 times a second.
func storm(t *testing.T, l *node.Launcher, name string, contents ...string) (stop func() int) {
	t.Helper()
	tick, begin := time.NewTicker(ms), time.Now()
	t.Cleanup(tick.Stop)
	return concurrently(func(i int) bool {
		for time.Since(begin) < time.Duration(i)*ms/10 {
			<-tick.C
		}
		n := i / 2 % len(contents)
		from, to := l.Path(fmt.Sprintf(".storm-%d", n)), l.Path(name)
		if i%2 == 1 {
			from, to = to, from
		}
		err := os.Rename(from, to)
		if errors.Is(err, os.ErrNotExist) { // the agent removes triggers
			err = os.WriteFile(l.Path(fmt.Sprintf(".storm-%d", n)), []byte(contents[n]), 0o600)
		}
		return err == nil
	})
}

func TestARenameStormHurtsNobodyElse(t *testing.T) {
	f := newField(t)
	l := f.attacker.Launcher
	mine := fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":`, l.Namespace, l.Name)
	for _, attack := range []struct {
		name     string
		contents []string
	}{
		{"shutdown-like", []string{""}},
		{"vm.json", []string{"bad", mine + `"a","gracePeriodSeconds":-1}`, mine + `"b"}`, mine + `"c","gracePeriodSeconds":"x"}`, mine + `"d"}`}},
		{"shutdown", []string{`{"version":1,"uid":"somebody-else"}`, ""}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			stop := storm(t, l, attack.name, attack.contents...)
			begin := time.Now()
			f.endures(t)
			t.Logf("%.0f renames a second", float64(stop())/time.Since(begin).Seconds())
		})
	}
	t.Run("a neighbour with a VM", func(t *testing.T) {
		v := f.a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=0")
		stop := storm(t, l, "shutdown", "")
		defer stop()
		from := v.SignalShim(t)
		v.WaitGone(t, soon)
		sent, ok := v.Sent(t, unix.SIGTERM)
		machine := 2 * f.n.Late(from, sent)
		if took := sent.Sub(from); !ok || took > reaction+50*ms+machine {
			t.Errorf("destroyed after %v (%v); the machine is %v late", took, ok, machine)
		}
	})
}

func TestADirectorySwappedForALinkAllTheTimeLeadsToNobodyElse(t *testing.T) {
	f := newField(t)
	link := filepath.Join(f.a.LaunchersDir, "link")
	if err := os.Symlink(filepath.Base(f.bystander.Launcher.Dir), link); err != nil {
		t.Fatal(err)
	}
	f.attacker.Launcher.Touch(t)
	stop := concurrently(func(int) bool {
		return unix.Renameat2(unix.AT_FDCWD, f.attacker.Launcher.Dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil
	})
	f.endures(t)
	t.Logf("%d swaps", stop())
	f.bystander.SignalShim(t)
	node.Eventually(t, soon, func() bool { return f.bystander.Launcher.Status().Deadline != "" }, "the bystander's own shutdown does not begin")
}

// TestHoldALock is the stranger process of the test below. It holds a POSIX lock on the
// file LOCK until it gets SIGUSR1, and runs on until its standard input ends.
func TestHoldALock(t *testing.T) {
	path := os.Getenv("LOCK")
	if path == "" {
		return // this process is not the stranger
	}
	release := make(chan os.Signal, 1)
	signal.Notify(release, unix.SIGUSR1)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	<-release
	f.Close()
	fmt.Println("released")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
}

// stranger is a process that locks a file.
type stranger struct {
	*exec.Cmd
	out *bufio.Reader
}

func newStranger(t *testing.T, path string) stranger {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldALock$")
	cmd.Env = append(os.Environ(), "LOCK="+path)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGUSR1)
		_ = in.Close() // this ends the stranger
		if err := cmd.Wait(); err != nil {
			t.Errorf("the stranger that held a lock did not end by itself: %v", err)
		}
	})
	s := stranger{cmd, bufio.NewReader(out)}
	s.says(t, "held")
	return s
}

func (s stranger) says(t *testing.T, want string) {
	t.Helper()
	if line, err := s.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("the stranger says %q, %v; want %q", line, err, want)
	}
}

func TestALockOfAStrangerConcernsThatVMOnly(t *testing.T) {
	f := newField(t)
	second := f.a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=1")
	var held []stranger
	for _, v := range []*node.VM{f.attacker, second} {
		v.Launcher.Write(t, "new", fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":%q,"gracePeriodSeconds":1}`, v.Namespace, v.Name, v.UID))
		held = append(held, newStranger(t, v.Launcher.Path("new")))
		if err := os.Rename(v.Launcher.Path("new"), v.Launcher.Path("vm.json")); err != nil {
			t.Fatal(err)
		}
	}
	node.Eventually(t, soon, func() bool { // the agent has seen the new files
		s, ok := f.a.StatusOf(t, f.attacker.Guest)
		return ok && s.GracePeriodSeconds == 1
	}, "the new vm.json is not taken over")
	f.attacker.Shim.Kill()
	node.Never(t, 2*time.Second, f.attacker.Gone, "the VM ended although its vm.json is locked")

	// When one stranger releases its lock, then the shim of that VM looks dead, and no
	// other VM is affected.
	if err := held[0].Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	held[0].says(t, "released")
	f.attacker.WaitGone(t, soon)
	f.attacker.WaitStopped(t, "LauncherDied", "Forced")

	// The other stranger holds its lock through a whole shutdown.
	second.Launcher.Touch(t)
	second.WaitGone(t, soon)
	second.WaitStopped(t, "LauncherSignal", "Forced")
	f.untouched(t)
	for _, s := range held {
		if err := s.Process.Signal(unix.Signal(0)); err != nil {
			t.Errorf("a stranger: %v", err)
		}
	}
}

func TestAPidOfAStrangersProcessIsTheShimsBusinessOnly(t *testing.T) {
	f := newField(t)
	for name, pid := range map[string]int{"another tenant's QEMU": f.bystander.PID, "libvirtd": f.n.Libvirtd().PID(), "the node's init": 1} {
		t.Run(name, func(t *testing.T) {
			g := f.n.Boot(t, node.Spec{Firmware: true})
			l := f.a.Launcher(t, g)
			pidFile := filepath.Join(t.TempDir(), "pid")
			if err := os.WriteFile(pidFile, []byte(fmt.Sprint(pid)), 0o600); err != nil {
				t.Fatal(err)
			}
			v := &node.VM{Guest: g, Agent: f.a, Launcher: l, Shim: l.Shim(t, "--grace-period=1", "--pid-file="+pidFile)}
			node.Eventually(t, soon, func() bool { s, ok := f.a.StatusOf(t, g); return ok && s.UID == v.UID }, "not guarded")
			v.SignalShim(t)
			v.WaitGone(t, soon) // its own QEMU, which libvirt names
			v.WaitStopped(t, "LauncherSignal", "Forced")
			f.untouched(t)
			if !v.Shim.Running() || !f.n.Libvirtd().Running() {
				t.Errorf("the shim watches on: %v; libvirtd runs: %v", v.Shim.Running(), f.n.Libvirtd().Running())
			}
		})
	}
}

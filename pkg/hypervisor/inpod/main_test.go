package inpod

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

const testTimeout = 20 * time.Second

// binary is the shim, built once. A guest, which has no Go, names one.
var binary = os.Getenv("VMGRACE_SHIM")

func TestMain(m *testing.M) {
	if dir := os.Getenv(scriptDir); dir != "" {
		os.Exit(launcher(dir))
	}
	if binary != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "launcher-driver-test")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "launcher-shim")
	build := exec.Command("go", "build", "-o", binary, "../../../cmd/launcher-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// world is a driver and its launchers.
type world struct {
	*Driver
	base  string
	n     int
	shims map[string]*exec.Cmd
}

func given(t *testing.T) *world {
	t.Helper()
	before := goleak.IgnoreCurrent()
	w := &world{
		Driver: New(),
		base:   t.TempDir(), shims: map[string]*exec.Cmd{},
	}
	// Each change is looked at, as the agent does.
	ctx, cancel := context.WithCancel(t.Context())
	watcher := watch.NewParent(w.base, slog.New(slog.DiscardHandler), func(name string) {
		if v := w.vm(name); v != nil {
			_, _ = v.Look()
		}
	})
	watched := make(chan error, 1)
	go func() { watched <- watcher.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		kit.Must(t, <-watched)
		kit.Must(t, w.Close())
		goleak.VerifyNone(t, before)
	})
	return w
}

// directory makes a launcher directory that the driver knows.
func (w *world) directory(t *testing.T, pod string) (name string, dir Directory) {
	t.Helper()
	w.n++
	vm := fmt.Sprintf("vm-%d", w.n)
	name = grace.DomainName("ns", vm)
	kit.Must(t, os.Mkdir(filepath.Join(w.base, name), 0o755))
	return name, w.Directory(name, pod, watch.Directory{Base: w.base, Name: name, Namespace: "ns", VM: vm})
}

// launch starts a shim whose VM process is a shell that heeds or ignores SIGUSR1.
func (w *world) launch(t *testing.T, name string, kind drivertest.Guest) {
	t.Helper()
	w.launchIn(t, name, kind, nil)
}

// launchIn is launch with special attributes of the shim.
func (w *world) launchIn(t *testing.T, name string, kind drivertest.Guest, special *syscall.SysProcAttr) {
	t.Helper()
	dir := filepath.Join(w.base, name)
	heed := "exit 0"
	if kind == drivertest.Deaf {
		heed = ":"
	}
	up := filepath.Join(t.TempDir(), "up")
	guest := `trap "` + heed + `" USR1; trap "exit 15" TERM; echo $$ >` + up + `.new; mv ` + up + `.new ` + up + `; while :; do sleep 0.05; done`
	press := filepath.Join(t.TempDir(), "press")
	kit.Program(t, press, "#!/bin/sh\nexec kill -USR1 $(cat "+up+")\n")
	_, vm, _ := grace.SplitDomainName(name)
	shim := exec.Command(binary, "--namespace=ns", "--name="+vm, "--uid=u-1", "--launcher-dir="+dir,
		"--ask-with=exec:"+press, "--", "sh", "-c", guest)
	shim.SysProcAttr = special
	kit.Must(t, shim.Start())
	ended := make(chan struct{})
	go func() { _ = shim.Wait(); close(ended) }()
	w.shims[name] = shim
	t.Cleanup(func() {
		_ = shim.Process.Signal(syscall.SIGCONT)
		if i, err := w.Get(t.Context(), name); err == nil {
			_ = syscall.Kill(i.Instance.PID, syscall.SIGKILL)
		} else if pid, err := strconv.Atoi(content(up)); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-ended
	})
	kit.Eventually(t, "the guest is up", func() bool { return content(up) != "" })
	kit.Eventually(t, "the launcher is registered", func() bool { return content(filepath.Join(dir, signals.FileVM)) != "" })
}

func content(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	return string(text)
}

func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Suite{New: harness, Timeout: testTimeout, Without: map[string]string{
		"UnreachableIsNotNotFound":   "there is nothing between it and the launcher directories: see TestADirectoryThatCannotBeReadProvesNothing",
		"AReconnectSaysLookAgain":    "there is no connection",
		"APausedGuestIsResumedFirst": "the launcher resumes it when it asks: see internal/shim",
		"ARefusalIsInTheGuestsWords": "as above, and TestWhatALauncherAnswersIsTold",
		"AFrozenGuestIsThawedFirst":  "as above",
		"APanickedGuestHasCrashed":   "its launcher says so once it is asked: see TestALauncherSaysThatItsOwnGuestIsOff",
	}})
}

func harness(t *testing.T) *drivertest.Harness {
	t.Helper()
	w := given(t)
	return &drivertest.Harness{
		Driver: w,
		Run:    w.Run,
		Start: func(t *testing.T, kind drivertest.Guest) string {
			t.Helper()
			name, _ := w.directory(t, "")
			w.launch(t, name, kind)
			w.look(t, name)
			return name
		},
		Restart: func(t *testing.T, name string) {
			t.Helper()
			d, err := w.Get(t.Context(), name)
			kit.Must(t, err)
			kit.Must(t, syscall.Kill(d.Instance.PID, syscall.SIGKILL))
			kit.Eventually(t, "it is gone", func() bool {
				_, err := w.Get(t.Context(), name)
				return err != nil && content(filepath.Join(w.base, name, signals.FileVM)) == ""
			})
			w.launch(t, name, drivertest.Deaf)
			w.look(t, name)
		},
		Freeze: func(t *testing.T, name string) {
			t.Helper()
			freeze(t, w.shims[name].Process)
		},
	}
}

func freeze(t *testing.T, shim *os.Process) {
	t.Helper()
	kit.Must(t, shim.Signal(syscall.SIGSTOP))
	kit.Eventually(t, "it is stopped", func() bool {
		return strings.Contains(content(fmt.Sprintf("/proc/%d/stat", shim.Pid)), ") T ")
	})
}

// look does what the agent does when a launcher directory changes.
func (w *world) look(t *testing.T, name string) {
	t.Helper()
	namespace, vm, _ := grace.SplitDomainName(name)
	_, err := w.Directory(name, "", watch.Directory{Base: w.base, Name: name, Namespace: namespace, VM: vm}).Look()
	kit.Must(t, err)
}

var _ hypervisor.Driver = (*world)(nil)

//go:build !unit

package libvirt

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// shared is the node of all tests here: a libvirtd and real QEMU guests.
var shared *node.Node

// checkOnly is set where TestMain does nothing but CheckLibrary.
const checkOnly = "VMGRACE_TEST_CHECK_LIBRARY"

func TestMain(m *testing.M) {
	if os.Getenv(checkOnly) != "" {
		if err := CheckLibrary(); err != nil {
			_, _ = os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	os.Exit(node.Main(func(n *node.Node) int {
		shared = n
		return m.Run()
	}))
}

func socket() string { return shared.Socket() }

// open returns a driver for the shared node, behind a proxy. When the test
// ends it must close without leaving a goroutine.
func open(t *testing.T) (*Driver, *proxy) {
	t.Helper()
	leavesNothing(t)
	p := newProxy(t, socket())
	d := New(Config{URI: p.uri(), RunDir: shared.RunDir(), LogDir: filepath.Join(shared.Dir, "log", "qemu"), Logger: logger(t)})
	t.Cleanup(func() {
		node.Eventually(unending{t}, testTimeout, func() bool { return d.Close() == nil }, "no call hangs in libvirt")
	})
	return d, p
}

// leavesNothing fails a test that leaves a goroutine. libvirt's event loop belongs to the
// process.
func leavesNothing(t *testing.T) {
	t.Helper()
	kit.Must(t, loop())
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// unending is a test whose context does not end before its cleanup.
type unending struct{ *testing.T }

func (u unending) Context() context.Context { return context.WithoutCancel(u.T.Context()) }

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Suite{New: harness, Timeout: testTimeout})
}

func harness(t *testing.T) *drivertest.Harness {
	t.Helper()
	d, p := open(t)
	guests := map[string]*node.Guest{}
	return &drivertest.Harness{
		Driver: d,
		Run:    d.Run,
		Start: func(t *testing.T, kind drivertest.Guest) string {
			t.Helper()
			spec := node.Spec{Firmware: kind == drivertest.Deaf || kind == drivertest.Panicked, Panics: kind == drivertest.Panicked}
			switch kind {
			case drivertest.Refusing:
				spec.GuestAgent, spec.Behaviour = true, "agent=refuse"
			case drivertest.Frozen:
				spec.GuestAgent, spec.Behaviour = true, "agent=frozen"
			default:
			}
			g := shared.Boot(t, spec)
			guests[g.Domain] = g
			return g.Domain
		},
		Pause: func(t *testing.T, name string) { t.Helper(); guests[name].Virsh(t, "suspend") },
		Restart: func(t *testing.T, name string) {
			t.Helper()
			guests[name].Virsh(t, "destroy")
			guests[name] = shared.Boot(t, guests[name].Spec) // the same UUID
		},
		Freeze: func(t *testing.T, name string) { t.Helper(); guests[name].Signal(t, syscall.SIGSTOP) },
		Cut:    p.cut,
		Mend:   p.mend,
	}
}

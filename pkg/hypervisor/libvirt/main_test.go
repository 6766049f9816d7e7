package libvirt

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/pkg/hypervisor/drivertest"
	"github.com/vmgrace/vmgrace/test/node"
)

// patience is how long anything without a promise may take.
const patience = 60 * time.Second

// shared is the node of all tests here: a libvirtd and real QEMU guests.
var shared *node.Node

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int {
		shared = n
		return m.Run()
	}))
}

func socket() string { return filepath.Join(shared.Dir, "run", "libvirt-sock") }

// open returns a driver for the shared node, behind a proxy. When the test
// ends it must close without leaving a goroutine.
func open(t *testing.T) (*Driver, *proxy) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	p := newProxy(t, socket())
	d := New(Config{URI: p.uri(), RunDir: shared.RunDir(), LogDir: filepath.Join(shared.Dir, "log", "qemu"), Logger: logger(t)})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, p
}

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Suite{New: harness, Patience: patience})
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
			g := shared.Boot(t, node.Spec{Firmware: kind == drivertest.Deaf})
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

package inpod

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

// apiServer shows that each pod is a target, or none is, and that there is a pod where there is a
// launcher directory.
type apiServer struct {
	w      *world
	target bool
}

func (a apiServer) Target(string, string) bool { return a.target }
func (a apiServer) None(domain string) bool {
	_, err := os.Stat(filepath.Join(a.w.base, domain))
	return errors.Is(err, os.ErrNotExist)
}

// host is a world with what its API server shows.
func host(t *testing.T, target bool) (*world, *Mover) {
	t.Helper()
	w := given(t)
	w.Trust(apiServer{w, target})
	return w, w.Mover()
}

func TestContractOfMigrations(t *testing.T) {
	drivertest.RunMoves(t, drivertest.MoveSuite{Timeout: testTimeout, New: func(t *testing.T) *drivertest.MoveHarness {
		t.Helper()
		a, source := host(t, false)
		b, target := host(t, true)
		return &drivertest.MoveHarness{
			Sender: source, Source: source, Target: target,
			Start: func(t *testing.T) string {
				t.Helper()
				name, _ := a.directory(t, "")
				there, _ := b.directory(t, "")
				if name != there {
					t.Fatalf("%s and %s", name, there)
				}
				a.script(t, name)
				b.script(t, name, scriptIncoming+"=1")
				return name
			},
			Connect: func(t *testing.T, name string) string { t.Helper(); relay(t, source, target, name); return "" },
			Pause: func(t *testing.T, name string) {
				t.Helper()
				kit.Must(t, a.shims[name].Process.Signal(syscall.SIGUSR1))
			},
		}
	}})
}

// relay does what the agents do for one migration.
func relay(t *testing.T, source, target *Mover, name string) {
	t.Helper()
	from, err := source.Listen(name)
	kit.Must(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = from.Close(); wg.Wait() }) // it is closed once it had its connection
	wg.Go(func() {
		in, err := from.Accept()
		if err != nil {
			return // nothing was sent
		}
		defer func() { _ = in.Close() }()
		out, err := receive(t, target, name)
		if err != nil {
			t.Errorf("the target: %v", err)
			return
		}
		_, _ = io.Copy(out, in) // an error ends it
		_ = out.Close()
	})
}

func receive(t *testing.T, target *Mover, name string) (net.Conn, error) {
	t.Helper()
	to, err := target.Listen(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = to.Close() }()
	if err := target.Receive(t.Context(), name); err != nil {
		return nil, err
	}
	return to.Accept()
}

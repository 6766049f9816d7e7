package migrate

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// pods are the launchers of a guest that is in its launcher pod on both nodes.
type pods struct {
	machines map[string]string // by node
	sockets  map[string]string // of the agents, by node
	// writes is what the source's launcher does with its connection.
	writes func(net.Conn) error
	// receives is what the target's launcher does with its connection.
	receives func(net.Conn) error
	silent   bool   // the target's launcher connects nothing
	deaf     string // the node whose launcher lets no guest go on
	blocked  bool   // the source's launcher directory takes no socket
}

var (
	errDeaf    = errors.New("no answer")
	errBlocked = errors.New("make room for migration.sock: directory not empty")
)

func (p *pods) deafOn(node string) bool { return p != nil && p.deaf == node }

func (p *pods) prefix() string {
	if p == nil {
		return ""
	}
	return hypervisor.LauncherPrefix
}

// targetPod is the UID of the target's launcher pod.
const targetPod = "33333333-2222-4333-8444-555555555555"

// givenPods returns a world with such a guest. The source's launcher sends what writes gives to
// the connection; a target that has heard all of it has the guest, paused.
func givenPods(t *testing.T, writes func(net.Conn) error) *world {
	t.Helper()
	w := given(t)
	w.m.Status.MigrationState.SourcePodUID, w.m.Status.MigrationState.TargetPodUID = guestUUID, targetPod
	w.uuids = map[string]string{"b": targetPod}
	w.stays["b"] = hypervisor.StayWaiting
	w.pods = &pods{machines: map[string]string{"a": "q35 tcg", "b": "q35 tcg"}, sockets: map[string]string{}, writes: writes}
	w.sends = func(ctx context.Context) error {
		w.mu.Lock()
		socket := w.pods.sockets["a"]
		w.mu.Unlock()
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		defer stop()
		return w.pods.writes(c)
	}
	return w
}

func (h host) Claims(string) bool { return h.w.pods != nil }

func (h host) Machine(string) string {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.pods.machines[h.name]
}

func (h host) Listen(string) (net.Listener, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.pods.blocked && h.name == "a" {
		return nil, errBlocked
	}
	path := filepath.Join(h.w.t.TempDir(), "s")
	h.w.pods.sockets[h.name] = path
	return (&net.ListenConfig{}).Listen(h.w.t.Context(), "unix", path)
}

func (h host) Receive(ctx context.Context, _ string) error {
	h.w.mu.Lock()
	p, socket := h.w.pods, h.w.pods.sockets[h.name]
	if !p.silent {
		h.w.stays[h.name] = hypervisor.StayBusy
	}
	h.w.mu.Unlock()
	if p.silent {
		return nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	go func() { // ends with its connection
		defer func() { _ = c.Close() }()
		_ = p.receives(c)
	}()
	return nil
}

// whyStayed waits until the guest has stayed at the source, and returns why.
func (w *world) whyStayed() (why string) {
	w.t.Helper()
	w.eventually("the guest stays", func() bool {
		s := w.m.Status.MigrationState
		why = s.FailureReason
		return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent
	})
	return why
}

// errSent is the end of a migration that did not complete.
var errSent = errors.New("broken pipe")

// untilRefused writes until the connection ends.
func untilRefused(c net.Conn) error {
	for {
		if _, err := c.Write(make([]byte, 64<<10)); err != nil {
			return errSent
		}
	}
}

// Given a target whose launcher cannot have the guest. When it is sent, then it stays at the
// source, and the object has the reason in one line.
func TestAGuestInItsPodStaysWhereTheTargetCannotHaveIt(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*pods)
		want  string
	}{
		"another machine":          {func(p *pods) { p.machines["b"] = "q35 kvm" }, `node b did not let it in: refused: the guest's machine is "q35 tcg", and QEMU here has "q35 kvm"`},
		"a launcher that lies":     {func(p *pods) { p.silent = true }, "node b did not let it in: the launcher has not connected its QEMU"},
		"a launcher that hangs up": {func(p *pods) { p.receives = func(net.Conn) error { return nil } }, errSent.Error()},
		"a launcher that answers": {func(p *pods) {
			p.receives = func(c net.Conn) error { _, _ = c.Write([]byte("x")); _, err := io.Copy(io.Discard, c); return err }
		}, errSent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := givenPods(t, untilRefused)
			c.given(w.pods)
			w.start()
			if why := w.whyStayed(); !strings.Contains(why, c.want) {
				t.Errorf("it stays because of %q, want %q", why, c.want)
			}
		})
	}
}

// Given a target whose VM is of one kind. Then only a guest of that kind is let in: QEMU's own stream goes
// to no libvirt, and what libvirt sends to no launcher.
func TestAGuestIsLetInOnlyWhereItIsOfTheSameKind(t *testing.T) {
	const refused = "in its launcher pod on one node, and libvirt's on the other"
	for _, c := range []struct {
		sourcePod string // = guestUUID: the VM is in its launcher pod
		comes     role
		want      string // in the refusal; "": it is let in
	}{
		{guestUUID, roleStream, ""},
		{guestUUID, roleRelay, refused},
		{targetPod, roleRelay, ""},
		{targetPod, roleStream, refused},
		{guestUUID, "pigeon", "no known kind"},
	} {
		m := &Migration{}
		m.Status.Phase = kubevirt.MigrationTargetReady
		m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: "a", TargetNode: "b", DomainUUID: guestUUID, SourcePodUID: c.sourcePod}
		s := &side{node: New(Config{Node: "b", Launchers: nobodyClaims{}}), target: true, migration: m}
		err := s.admit("a", hello{Role: c.comes, UUID: guestUUID})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v, want %q", c.comes, c.sourcePod, err, c.want)
		}
	}
}

// Given nodes with --migration-uri. Then a VM in its launcher pod is sent through the agents all the same:
// libvirt does not know it.
func TestAVMInItsPodIsNotSentByLibvirt(t *testing.T) {
	uri := template(t, "qemu+tls://{{address}}/system")
	for sourcePod, want := range map[string]bool{guestUUID: false, targetPod: true} {
		m := &Migration{}
		m.Status.MigrationState = &kubevirt.MigrationState{DomainUUID: guestUUID, SourcePodUID: sourcePod}
		s := &side{node: New(Config{URI: uri, Launchers: nobodyClaims{}}), migration: m}
		if s.native() != want {
			t.Errorf("source pod %s: by libvirt itself: %v", sourcePod, !want)
		}
	}
}

// Given a stream that never ends. When the migration is deleted, then it ends, and the agents
// have held a few buffers of it at most.
func TestAStreamThatNeverEndsEndsWithItsMigration(t *testing.T) {
	t.Parallel()
	w := givenPods(t, untilRefused)
	w.pods.receives = func(c net.Conn) error { _, err := io.Copy(io.Discard, c); return err }
	w.start()
	w.eventually("it flows", func() bool { return w.m.Status.Phase == kubevirt.MigrationRunning })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.looked("a")
	w.looked("a")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the agents hold %d MiB more", grown>>20)
	}
	w.mu.Lock()
	m := w.m.DeepCopy()
	m.Status.MigrationState.AbortRequested = true
	w.m = m
	w.mu.Unlock()
	w.change()
	select {
	case <-w.aborted:
	case <-time.After(10 * time.Second):
		t.Fatal("the launcher is not told to abort")
	}
	// Its launcher does not obey: the relay is closed, then the guest runs on.
	w.whyStayed()
}

// Given a guest in its pod that has arrived, and an agent of the target that has just started: it
// has not looked at the launcher's directory yet. Then it does not say that the guest is absent.
// Otherwise the guest would be lost where its source has gone already.
func TestATargetThatHasJustStartedAsksTheLauncherNotLibvirt(t *testing.T) {
	n := New(Config{Launchers: nobodyClaims{}, Libvirt: Kind{Hypervisor: libvirts{}}, Launcher: Kind{Hypervisor: launchers{}}})
	m := &Migration{}
	m.Status.MigrationState = &kubevirt.MigrationState{DomainUUID: guestUUID, SourcePodUID: guestUUID, TargetPodUID: targetPod}
	s := &side{node: n, target: true, migration: m}
	if _, is := s.kind().Hypervisor.(launchers); !is {
		t.Error("libvirt is asked")
	}
	m.Status.MigrationState.SourcePodUID = targetPod
	if _, is := s.kind().Hypervisor.(libvirts); !is {
		t.Error("a domain of libvirt's is looked for in a pod")
	}
}

type (
	nobodyClaims struct{ Launchers }
	libvirts     struct{ Hypervisor }
	launchers    struct{ Hypervisor }
)

func (nobodyClaims) Claims(string) bool { return false }

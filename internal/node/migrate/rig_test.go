package migrate

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// guestUUID is libvirt's UUID of the guest, otherUUID of another domain of its name.
const (
	guestUUID = "6ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"
	otherUUID = "11111111-2222-4333-8444-555555555555"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates of nodes.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, &key.PublicKey)
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// node returns the identity of a node, with a certificate of the authority.
func (a *authority) node(t *testing.T, name string) *Identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: migration.CommonNamePrefix + name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, &key.PublicKey)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	i := NewIdentity(name, nil, nil)
	i.cert.Store(&tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf})
	i.roots.Store(roots)
	return i
}

// world is two nodes, the object of one migration, and the guest on both sides.
type world struct {
	t     *testing.T
	mu    sync.Mutex
	m     *Migration
	ca    *authority
	nodes map[string]*Node
	addrs map[string]string

	stays map[string]hypervisor.Stay // of the guest, by node
	qemu  *proc                      // the source's
	// sends is what libvirt does to migrate the guest.
	sends     func(ctx context.Context) error
	phase     grace.Phase
	aborted   chan struct{}
	uri       string                 // that libvirt was last given
	libvirt   string                 // the target's socket
	address   string                 // that the target publishes; "": where it listens
	uris      map[string]URITemplate // of the nodes
	uuids     map[string]string      // of the guest's domain, by node; guestUUID if there is none
	starts    map[string]uint64      // of its QEMU, by node; 1 if there is none
	refused   map[string]int         // connections, by reason
	strangers map[uint64]*proc       // other QEMUs, by start
	out       hypervisor.Outgoing    // that libvirt was last asked for
	resumes   time.Duration          // how long that takes
	downtimes []time.Duration        // as measured
	told      atomic.Pointer[string] // of which guest the keeper was last told that it has moved
	resumed   []string               // on which node, in order
	removed   []string
	looks     map[string]int
	goesDown  atomic.Bool   // the target's node shuts down
	held      time.Duration // for how long the shutdown is held
	paused    []string      // the pause of the guest, its Event and its status, in order
	left      bool          // the source's libvirt has recorded that the guest was migrated
	former    grace.Instance
	dirs      map[string]string // of a node's sockets
	// stripped means that the object is gone despite its finalizers.
	stripped bool
	late     kubevirt.MigrationPhase // the target's watch shows no later one before the end
	cutOff   *Migration              // what the source's watch shows for ever
	hangs    bool                    // the source's libvirt answers nothing about the domain
	hung     []error                 // why each such question of the source ended
	pods     *pods                   // nil: the guest is libvirt's
}

type proc struct {
	once sync.Once
	done chan struct{}
}

func (p *proc) Done() <-chan struct{} { return p.done }
func (*proc) Close() error            { return nil }
func (p *proc) end()                  { p.once.Do(func() { close(p.done) }) }

// Signal ends it.
func (p *proc) Signal(unix.Signal) error { p.end(); return nil }

func given(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, looks: map[string]int{}, dirs: map[string]string{}, ca: newAuthority(t), nodes: map[string]*Node{}, addrs: map[string]string{}, phase: grace.Running,
		stays: map[string]hypervisor.Stay{"a": hypervisor.StayRunning, "b": hypervisor.StayAbsent},
		qemu:  &proc{done: make(chan struct{})}, aborted: make(chan struct{}, 16),
		m: &Migration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "move", UID: "m-1"},
			Spec:       kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: "vm"},
			Status: kubevirt.VirtualMachineInstanceMigrationStatus{Phase: kubevirt.MigrationScheduled, MigrationState: &kubevirt.MigrationState{
				SourceNode: "a", TargetNode: "b", TargetPodUID: "pod",
			}},
		},
	}
	return w
}

// open is process.Open for the source's QEMU.
func (w *world) open(_ int, start uint64) (Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.strangers[start]; p != nil {
		return p, nil
	}
	if closed(w.qemu.done) {
		return nil, process.ErrGone
	}
	return w.qemu, nil
}

// start runs both nodes until the test ends.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	listeners := map[string]net.Listener{}
	for _, name := range []string{"a", "b"} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			w.t.Fatal(err)
		}
		h := host{w, name}
		w.addrs[name], listeners[name], w.dirs[name] = l.Addr().String(), l, cmp.Or(w.dirs[name], w.t.TempDir())
		w.nodes[name] = New(Config{
			Node: name, SocketDir: w.dirs[name], LibvirtSocket: w.libvirt, URI: w.uris[name], Cluster: h, Identity: w.ca.node(w.t, name), Launchers: h, Libvirt: Kind{h, h}, Launcher: Kind{h, h}, VMs: h, Meter: h, GoesDown: func() bool { return name == "b" && w.goesDown.Load() },
			Open: w.open, Log: slog.New(slog.DiscardHandler),
		})
	}
	for name, n := range w.nodes {
		running.Go(func() { n.Run(ctx, listeners[name], cmp.Or(w.address, w.addrs[name])) })
	}
	w.t.Cleanup(func() { cancel(); running.Wait() })
}

// eventually polls the object and the guests until cond holds.
func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	end := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		ok := cond()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-end:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("%s: not so; %+v, %v, resumed %v, removed %v", what, *w.m.Status.MigrationState, w.stays, w.resumed, w.removed)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// looked waits until a node has looked at the guest once more, from now on.
func (w *world) looked(node string) {
	w.t.Helper()
	w.mu.Lock()
	before := w.looks[node]
	w.mu.Unlock()
	w.change()
	w.eventually(node+" looks", func() bool { return w.looks[node] > before })
}

func (w *world) change() {
	for _, n := range w.nodes {
		n.Changed()
	}
}

// host is one node's view of the world.
type host struct {
	w    *world
	name string
}

func (h host) Migrations() ([]*Migration, bool) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.stripped {
		return nil, true
	}
	if h.w.cutOff != nil && h.name == "a" {
		old := h.w.cutOff.DeepCopy()
		old.Status.MigrationState.TargetNodeAddress = h.w.addrs["b"]
		return []*Migration{old}, true
	}
	if phase := h.w.m.Status.Phase; h.w.late != "" && h.name == "b" && (phase == kubevirt.MigrationTargetReady || phase == kubevirt.MigrationRunning) {
		late := h.w.m.DeepCopy()
		late.Status.Phase = h.w.late
		return []*Migration{late}, true
	}
	return []*Migration{h.w.m}, true
}

func (h host) UpdateStatus(_ context.Context, m *Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.stripped {
		return errors.New("not found")
	}
	if h.w.cutOff != nil && h.name == "a" {
		return errors.New("no route")
	}
	is := h.w.m.DeepCopy()
	if was := is.Status.MigrationState.SourceState; was != "" && state.SourceState != "" && state.SourceState != was {
		return errors.New("an agent says vmgraceSourceState once")
	}
	if phase != "" {
		if m.Status.Phase != is.Status.Phase {
			return errors.New("conflict")
		}
		is.Status.Phase = phase
		if phase == kubevirt.MigrationTargetReady && is.Status.MigrationState.DomainUUID == "" {
			h.w.t.Error("the guest is offered a place before its UUID is in the status")
		}
	}
	for to, from := range map[*string]string{
		&is.Status.MigrationState.TargetNodeAddress: state.TargetNodeAddress, &is.Status.MigrationState.SourceState: state.SourceState,
		&is.Status.MigrationState.DomainUUID: state.DomainUUID, &is.Status.MigrationState.TargetState: state.TargetState, &is.Status.MigrationState.FailureReason: state.FailureReason,
	} {
		if from != "" {
			*to = from
		}
	}
	if state.Transport != "" {
		is.Status.MigrationState.Transport = state.Transport
	}
	if state.GuestPaused {
		is.Status.MigrationState.GuestPaused = true
	}
	if state.DowntimeMilliseconds > 0 {
		is.Status.MigrationState.DowntimeMilliseconds = state.DowntimeMilliseconds
	}
	if state.Mode == kubevirt.MigrationPaused && is.Status.MigrationState.Mode == "" {
		is.Status.MigrationState.Mode = kubevirt.MigrationPaused
		h.w.paused = append(h.w.paused, "status")
	}
	h.w.m = is
	h.w.change()
	return nil
}

func (h host) Gone(_ context.Context, m *Migration) (bool, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.stripped || m.UID != h.w.m.UID, nil
}

func (h host) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	h.w.mu.Lock()
	h.w.uri, h.w.out = o.URI, o
	h.w.mu.Unlock()
	return h.w.sends(ctx)
}

func (host) Progress(context.Context, string, grace.Instance) (hypervisor.Progress, error) {
	return hypervisor.Progress{}, hypervisor.ErrState
}

func (h host) Abort(context.Context, string, grace.Instance) error {
	select {
	case h.w.aborted <- struct{}{}:
	default:
	}
	return nil
}

func (h host) Pause(context.Context, string, grace.Instance) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.paused = append(h.w.paused, h.name)
	return nil
}

func (h host) Event(_ *Migration, reason, _ string) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.paused = append(h.w.paused, reason)
}

func (h host) HeldFor(string) time.Duration {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.held
}

func (h host) Look(ctx context.Context, _ string) (hypervisor.Stay, grace.Instance, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.looks[h.name]++
	if h.w.hangs && h.name == "a" {
		h.w.mu.Unlock()
		<-ctx.Done()
		h.w.mu.Lock()
		h.w.hung = append(h.w.hung, ctx.Err())
		return hypervisor.StayUnknown, grace.Instance{}, ctx.Err()
	}
	return h.w.stays[h.name], grace.Instance{UUID: h.w.pods.prefix() + cmp.Or(h.w.uuids[h.name], guestUUID), PID: 1, Start: cmp.Or(h.w.starts[h.name], 1)}, nil
}

func (h host) Resume(context.Context, string, grace.Instance) error {
	<-time.After(h.w.resumes) // libvirt works
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.name == "b" && !closed(h.w.qemu.done) {
		h.w.t.Error("the guest is resumed at the target while the source has its QEMU")
	}
	if h.w.pods.deafOn(h.name) {
		return errDeaf
	}
	h.w.stays[h.name] = hypervisor.StayRunning
	h.w.resumed = append(h.w.resumed, h.name)
	return nil
}

func (h host) Remove(context.Context, string, grace.Instance) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.stays[h.name] = hypervisor.StayAbsent
	h.w.removed = append(h.w.removed, h.name)
	if h.name == "a" {
		if _, err := os.Stat(filepath.Join(h.w.dirs["a"], "left-m-1")); err != nil {
			h.w.t.Error("the guest is ended at the source before that is written down")
		}
		h.w.qemu.end()
	}
	return nil
}

func (h host) Left(context.Context, string, grace.Instance) (bool, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.left, nil
}

func (h host) Phase(string) grace.Phase {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if closed(h.w.qemu.done) { // the hypervisor is not asked any more
		h.w.looks[h.name]++
	}
	return h.w.phase
}

func (host) LauncherReady(string, string, string) bool { return true }
func (h host) Former(string) grace.Instance            { return h.w.former }
func (h host) Moved(_, uuid string)                    { h.w.told.Store(&uuid) }
func (host) Changed(string, string)                    {}

func (h host) TunnelRefused(reason string) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.refused == nil {
		h.w.refused = map[string]int{}
	}
	h.w.refused[reason]++
}

func (h host) Downtime(d time.Duration) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.downtimes = append(h.w.downtimes, d)
}

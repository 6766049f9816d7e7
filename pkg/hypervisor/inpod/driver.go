package inpod

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

var _ hypervisor.Driver = (*Driver)(nil)

// Directory is a launcher directory.
type Directory interface {
	Look() (watch.View, error)
	WriteStatus(grace.Status) error
	RemoveTrigger(seen grace.TriggerID) error
	// Listen makes the agent's socket for a migration.
	Listen() (net.Listener, error)
}

// Launchers is what the API server shows of launcher pods, from memory.
type Launchers interface {
	// Target reports whether the pod was made as the target of a migration.
	Target(domain, pod string) bool
	// None reports whether this node is known to have no launcher pod of the domain.
	None(domain string) bool
}

// unknownLaunchers is without an API server, and before it is known.
type unknownLaunchers struct{}

func (unknownLaunchers) Target(string, string) bool { return false }
func (unknownLaunchers) None(string) bool           { return false }

// Driver implements hypervisor.Driver.
type Driver struct {
	closed chan struct{}
	ends   sync.WaitGroup // waiters for the end of a process

	mu     sync.Mutex
	vms    map[string]*vm // by domain
	sink   func(hypervisor.Event)
	done   bool
	budget budget // for looks into the claims of all
	pods   Launchers
}

// New returns a driver that knows of no launcher directory yet.
func New() *Driver {
	return &Driver{
		closed: make(chan struct{}), vms: map[string]*vm{}, budget: budget{every: nodeIdentifyEvery, burst: nodeIdentifyBurst}, pods: unknownLaunchers{},
	}
}

// Trust makes the driver use what the API server shows of launcher pods.
func (d *Driver) Trust(pods Launchers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = pods
}

func (d *Driver) launchers() Launchers {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods
}

// Directory takes dir as the VM's launcher directory from now on. Its launcher pod has
// this UID; without a pod ("") only the process tree tells which process is the VM's. Use
// the result in place of dir: a look at it also informs this driver, and its status.json
// carries the driver's requests.
func (d *Driver) Directory(domain, pod string, dir Directory) Directory {
	v := &vm{
		driver: d, name: domain, pod: pod, Directory: dir,
		uuid: hypervisor.LauncherPrefix + cmp.Or(pod, domain), news: make(chan struct{}),
		asking: make(chan struct{}, 1), writing: make(chan struct{}, 1), moving: make(chan struct{}, 1), looking: make(chan struct{}, 1),
		budget: budget{every: identifyEvery, burst: identifyBurst},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if was := d.vms[domain]; was != nil && was.pod == pod {
		return was
	}
	d.vms[domain] = v
	return v
}

// Claims reports whether a VM's launcher says that it asks the guest itself, by the last
// look at its directory.
func (d *Driver) Claims(name string) bool {
	v := d.vm(name)
	return v != nil && v.claimed()
}

func (d *Driver) vm(name string) *vm {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.vms[name]
}

// keep keeps a VM that has something, and drops others: the next look brings a dropped
// one back.
func (d *Driver) keep(v *vm, present bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch was := d.vms[v.name]; {
	case present && was == nil:
		d.vms[v.name] = v
	case !present && was == v:
		delete(d.vms, v.name)
	}
}

// Run tells sink of changes until ctx ends. The first event says that anything may have
// changed.
func (d *Driver) Run(ctx context.Context, sink func(hypervisor.Event)) error {
	d.hear(sink)
	defer d.hear(nil)
	d.tell(hypervisor.Event{})
	<-ctx.Done()
	return nil
}

func (d *Driver) hear(sink func(hypervisor.Event)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sink = sink
}

func (d *Driver) tell(e hypervisor.Event) {
	d.mu.Lock()
	sink := d.sink
	d.mu.Unlock()
	if sink != nil {
		sink(e)
	}
}

// Close releases all processes, which go on.
func (d *Driver) Close() error {
	d.mu.Lock()
	if !d.done {
		close(d.closed)
	}
	d.done = true
	vms := d.vms
	d.vms = map[string]*vm{}
	d.mu.Unlock()
	d.ends.Wait()
	for _, v := range vms {
		v.letGo()
	}
	return nil
}

// List implements hypervisor.Driver. A launcher directory that cannot be read is left out
// without an effect on the others; Get says why.
func (d *Driver) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.vms))
	d.mu.Unlock()
	var domains []hypervisor.Domain
	for _, name := range names {
		if !ours(name) {
			continue
		}
		if ctx.Err() != nil {
			return nil, failed("list", "", ctx.Err())
		}
		if dom, err := d.Get(ctx, name); err == nil {
			domains = append(domains, dom)
		}
	}
	return domains, nil
}

// Get implements hypervisor.Driver. An identified process is the VM until it ends,
// whatever its launcher says later. One that waits for a guest is no VM yet, until its launcher
// asks for a shutdown.
func (d *Driver) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	v := d.vm(name)
	if v == nil {
		return hypervisor.Domain{}, failed("look at", name, hypervisor.ErrNotFound)
	}
	i, err := v.now(ctx)
	v.mu.Lock()
	is := v.shown()
	v.mu.Unlock()
	if err == nil && is.hidden {
		err = fmt.Errorf("%w: its QEMU waits for a guest", hypervisor.ErrNotFound)
	}
	if err != nil {
		return hypervisor.Domain{}, failed("look at", name, err)
	}
	return hypervisor.Domain{Name: name, Domain: grace.Domain{Instance: i, Power: is.power, Agent: is.agent}}, nil
}

// Ask makes the launcher ask its guest, and waits for its answer.
func (d *Driver) Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	v, err := d.same(ctx, name, i)
	if err == nil {
		err = v.ask(ctx, m)
	}
	return failed("ask by "+string(m), name, err)
}

// Resume makes the launcher resume a guest that has arrived paused. It does nothing for others,
// which the launcher resumes when it asks them.
func (d *Driver) Resume(ctx context.Context, name string, i grace.Instance) error {
	v, err := d.same(ctx, name, i)
	if err == nil && v.arriving() {
		err = v.resume(ctx, i)
	}
	return failed("resume", name, err)
}

// Destroy sends SIGKILL.
func (d *Driver) Destroy(ctx context.Context, name string, i grace.Instance) error {
	v, err := d.same(ctx, name, i)
	if err == nil {
		err = v.kill(i, unix.SIGKILL)
	}
	return failed("destroy", name, err)
}

// Ended implements hypervisor.Driver.
func (d *Driver) Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	v := d.vm(name)
	if v == nil {
		return grace.EndExited, nil // with its launcher, in order
	}
	end, err := v.ended(ctx, i)
	return end, failed("ask for the end of", name, err)
}

// same returns the VM of a domain if it still is this instance.
func (d *Driver) same(ctx context.Context, name string, i grace.Instance) (*vm, error) {
	v := d.vm(name)
	if v == nil {
		return nil, hypervisor.ErrNotFound
	}
	now, err := v.now(ctx)
	if err == nil && now != i {
		err = fmt.Errorf("%w: its process is %d", hypervisor.ErrOtherInstance, now.PID)
	}
	return v, err
}

func failed(op, domain string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, domain, err)
}

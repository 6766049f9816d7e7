// Package fake is a scripted hypervisor for tests. It uses only Go's time and channels,
// so that it works in a testing/synctest bubble. Its guests heed the power button late or
// never, its calls hang until they are released, its libvirt can be unreachable, and its
// processes can be watched and signalled like real ones. A journal keeps every call.
package fake

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Op is a kind of call.
type Op string

// The calls that are kept in the journal and can be made to hang.
const (
	OpList    Op = "list"
	OpGet     Op = "get"
	OpAsk     Op = "ask"
	OpResume  Op = "resume"
	OpDestroy Op = "destroy"
	OpEnded   Op = "ended"
	OpSignal  Op = "signal" // cannot hang
)

// Call is a call to the hypervisor or a signal to one of its processes.
type Call struct {
	At     time.Time
	Op     Op
	Domain string
	Mode   grace.Mode  // of an OpAsk
	Signal unix.Signal // of an OpSignal
}

// Guest is a domain to be started, and how it behaves. The zero value has no
// name, is deaf, and dies at once when its QEMU is signalled.
type Guest struct {
	Name string
	// UUID of the domain; "" = a new one.
	UUID  string
	Grace string
	Agent bool
	// Persistent and Autostart are only reported.
	Persistent, Autostart bool

	// Presses is the number of the request that the guest heeds, counted from 1 over both
	// modes; 0 = deaf. It is off ShutsDown later.
	Presses   int
	ShutsDown time.Duration
	// NoAgent makes requests to the guest agent fail although its channel is open. Refuses are
	// the words with which the agent refuses them.
	NoAgent bool
	Refuses string
	// AskTakes is how long the hypervisor works on one request.
	AskTakes time.Duration

	// Exits is how long QEMU takes to exit on SIGTERM.
	Exits time.Duration
	// Frees is how long QEMU is exiting once its guest is off, whatever is sent to it.
	Frees time.Duration
	// Stays keeps QEMU when its guest is off; only the agent ends it.
	Stays bool
	// Frozen makes QEMU ignore SIGTERM; Unkillable makes it ignore SIGKILL, too.
	Frozen, Unkillable bool
	// Lingers is how long libvirt shows the domain, with no process that
	// could be identified, after QEMU has exited.
	Lingers time.Duration
	// Unidentified hides the instance's PID from everybody.
	Unidentified bool
}

// Hypervisor is the fake. Its methods may be called from any goroutine.
type Hypervisor struct {
	mu      sync.Mutex
	down    bool
	serial  int
	domains map[string]*domain
	ends    map[grace.Instance]grace.End
	procs   map[int]*proc
	hung    map[hang]chan struct{}
	journal []Call
	sinks   []*queue
}

// domain is a running domain.
type domain struct {
	Guest
	instance grace.Instance // as the driver shows it
	power    grace.Power
	paused   string // by what, where it is not to be resumed
	proc     *proc
	pressed  int
	// destroyed means that libvirt was told to destroy it; gone, that QEMU has exited but
	// libvirt has not cleaned up yet.
	destroyed, gone bool
}

type hang struct {
	op     Op
	domain string
}

// New returns a hypervisor without domains.
func New() *Hypervisor {
	return &Hypervisor{
		domains: map[string]*domain{}, ends: map[grace.Instance]grace.End{},
		procs: map[int]*proc{}, hung: map[hang]chan struct{}{},
	}
}

// Start starts a domain. One of that name that still runs is killed first.
func (h *Hypervisor) Start(g Guest) grace.Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.domains[g.Name]; old != nil {
		h.exit(old, grace.EndDestroyed)
		delete(h.domains, g.Name)
	}
	p := h.spawn(g.Name)
	if g.UUID == "" {
		g.UUID = fmt.Sprintf("00000000-0000-4000-8000-%012d", h.serial)
	}
	d := &domain{Guest: g, power: grace.PowerOn, proc: p, instance: grace.Instance{UUID: g.UUID}}
	if !g.Unidentified {
		d.instance.PID, d.instance.Start = p.pid, p.start
	}
	p.domain = d
	h.domains[g.Name] = d
	h.emit(hypervisor.Event{Name: g.Name, UUID: g.UUID})
	return d.instance
}

// Restart ends a domain and starts it again: the same UUID, another process.
func (h *Hypervisor) Restart(name string) grace.Instance {
	h.mu.Lock()
	var g Guest
	if d := h.domains[name]; d != nil {
		g = d.Guest
	}
	h.mu.Unlock()
	return h.Start(g)
}

// End ends a domain for the given reason.
func (h *Hypervisor) End(name string, why grace.End) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		h.exit(d, why)
	}
}

// SetPower changes the power of a domain.
func (h *Hypervisor) SetPower(name string, p grace.Power) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		d.power = p
		h.emit(hypervisor.Event{Name: name, UUID: d.UUID})
	}
}

// Restate changes the grace period that a domain states, and loses its event.
func (h *Hypervisor) Restate(name, seconds string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		d.Grace = seconds
	}
}

// Identify shows the process of an Unidentified domain.
func (h *Hypervisor) Identify(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		d.Unidentified = false
		d.instance.PID, d.instance.Start = d.proc.pid, d.proc.start
	}
}

// Hang makes all calls of a kind about a domain ("" for lists) hang until release is
// called or their context ends.
func (h *Hypervisor) Hang(op Op, domain string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key, held := hang{op, domain}, make(chan struct{})
	h.hung[key] = held
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		close(held)
		if h.hung[key] == held {
			delete(h.hung, key)
		}
	})
}

// Down makes libvirt unreachable, or reachable again. Events get lost while it
// is down.
func (h *Hypervisor) Down(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	came := h.down && !down
	h.down = down
	if came {
		h.emit(hypervisor.Event{})
	}
}

// Calls returns all calls so far.
func (h *Hypervisor) Calls() []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.journal)
}

// Count counts the calls of a kind about a domain.
func (h *Hypervisor) Count(op Op, domain string) int {
	n := 0
	for _, c := range h.Calls() {
		if c.Op == op && c.Domain == domain {
			n++
		}
	}
	return n
}

func (h *Hypervisor) note(c Call) {
	c.At = time.Now()
	h.journal = append(h.journal, c)
}

// powerOff lets the guest of a domain power itself off.
func (h *Hypervisor) powerOff(d *domain) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case d.gone || d.power != grace.PowerOn:
	case d.Stays:
		d.power = grace.PowerOff
		h.emit(hypervisor.Event{Name: d.Name, UUID: d.UUID})
	case d.Frees != 0:
		d.proc.exiting = true
		time.AfterFunc(d.Frees, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.exit(d, grace.EndGuest)
		})
	default:
		h.exit(d, grace.EndGuest)
	}
}

// exit ends a domain's QEMU; libvirt forgets the domain then or a bit later.
func (h *Hypervisor) exit(d *domain, why grace.End) {
	if d.gone {
		return
	}
	d.gone = true
	h.ends[d.instance] = why
	d.proc.exit()
	forget := func() {
		if h.domains[d.Name] == d {
			delete(h.domains, d.Name)
		}
		h.emit(hypervisor.Event{Name: d.Name, UUID: d.UUID, End: why})
	}
	if d.Lingers == 0 {
		forget()
		return
	}
	d.power = grace.PowerEnding
	h.emit(hypervisor.Event{Name: d.Name, UUID: d.UUID, End: why})
	time.AfterFunc(d.Lingers, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		forget()
	})
}

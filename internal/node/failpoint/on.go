//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Points are the points of one agent.
type Points struct{ *points }

type points struct {
	name     string // where to die
	log, arm string

	mu    sync.Mutex
	left  int // passes until death
	armed bool
	stage string // what the disk is used for
}

// New reads the environment.
func New() Points {
	p := &points{left: 1, log: os.Getenv("VMGRACE_FAILPOINT_LOG"), arm: os.Getenv("VMGRACE_FAILPOINT_ARMED"), stage: "open"}
	name, pass, _ := strings.Cut(os.Getenv("VMGRACE_FAILPOINT"), ":")
	if n, err := strconv.Atoi(pass); err == nil {
		p.left = n
	}
	p.name, p.armed = name, p.arm == ""
	return Points{p}
}

// At is a point. It does not return if the process is to die.
func (p *points) At(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed {
		if _, err := os.Lstat(p.arm); err != nil {
			return
		}
		p.armed = true
	}
	p.note(name)
	if name != p.name {
		return
	}
	if p.left--; p.left == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // the signal is on its way; nothing may happen meanwhile
	}
}

func (p *points) note(name string) {
	if p.log == "" {
		return
	}
	f, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, name)
		f.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failpoint log:", err)
	}
}

// use sets what the disk is used for from now on. With several VMs at once the names
// would mix; the tests have one VM per agent.
func (p *points) use(stage string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = stage
}

// step is a point on the disk.
func (p *points) step(name string) {
	p.mu.Lock()
	stage := p.stage
	p.mu.Unlock()
	if stage != "" {
		p.At(stage + "." + name)
	}
}

// Disk puts a point before each step on the disk. The point after a step is the one
// before the next.
func (p Points) Disk(d durable.Disk) durable.Disk { return durable.Disk{FS: disk{d.FS, p.points}} }

// Ports puts points before and after every call through the agent's ports.
func (p Points) Ports(c agent.Config) agent.Config {
	launcher := c.Launcher
	c.Cache = cache{c.Cache, p.points}
	c.Hypervisor = hypervisors{c.Hypervisor, p.points}
	c.Processes = processes{c.Processes, p.points}
	c.Launcher = func(namespace, name, pod string) agent.Launcher {
		return launchers{launcher(namespace, name, pod), p.points}
	}
	if c.Cluster != nil {
		c.Cluster = clusters{c.Cluster, p.points}
	}
	if c.Inhibitor != nil {
		keep := c.SaveNodeShutdown
		c.SaveNodeShutdown = func(n grace.NodeShutdownTime) error {
			defer p.around("keep-node-shutdown")()
			return keep(n)
		}
	}
	return c
}

// Launchers puts points around the hint that a launcher directory changed.
func (p Points) Launchers(notify func(name string)) func(name string) {
	return func(name string) {
		defer p.around("hint-launcher")()
		notify(name)
	}
}

// Domains puts points around libvirt's events.
func (p Points) Domains(notify func(hypervisor.Event)) func(hypervisor.Event) {
	return func(ev hypervisor.Event) {
		defer p.around("hint-domain")()
		notify(ev)
	}
}

// VMs puts points around the hint that the API server shows a change.
func (p Points) VMs(notify func(namespace, name string)) func(namespace, name string) {
	return func(namespace, name string) {
		defer p.around("hint-cluster")()
		notify(namespace, name)
	}
}

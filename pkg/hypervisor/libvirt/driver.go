// Package libvirt drives QEMU domains through libvirt.
//
// The driver joins two sources. libvirtd says what a domain does. Its run directory,
// root-owned files below /run/libvirt/qemu, says which process a domain is, even while
// libvirtd is hung or dead. Neither alone proves that a domain is gone.
//
// A call into libvirt cannot be cancelled. So each runs in a goroutine of its own, in a
// [pool]: a bounded set of connections for one kind of call. Slow requests, destroys and
// queries do not wait for each other, and one domain that hangs has at most one call in
// each pool. Connections are opened when needed and replaced when they break.
package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

var _ hypervisor.Driver = (*Driver)(nil)

// libvirt's directories for qemu:///system.
const (
	systemRunDir = "/run/libvirt/qemu"
	systemLogDir = "/var/log/libvirt/qemu"
)

// Keepalive of the connection for events: a libvirtd that is silent for 20 s is given up.
// Calls that hang return when it answers or ends. We ask only if libvirtd, which asks
// every 5 s itself, does not.
const (
	keepaliveSeconds = 10
	keepaliveCount   = 1
)

// How many connections a pool may open. libvirtd has 20 workers for slow
// calls and 5 more that only take the quick ones (libvirtd.conf: max_workers,
// prio_workers).
const (
	requestConns = 12
	agentConns   = 6
	destroyConns = 4
	queryConns   = 8
)

// closeTimeout is how long Close waits for calls that hang.
const closeTimeout = 500 * time.Millisecond

// Config says where libvirt is.
type Config struct {
	// URI is libvirt's connection URI.
	URI string
	// RunDir and LogDir are libvirt's directories for QEMU. They have defaults for
	// qemu:///system. Elsewhere "" means that there are none; then no process is ever
	// identified.
	RunDir, LogDir string
	Logger         *slog.Logger
}

// Driver talks to one libvirt. It implements hypervisor.Driver.
type Driver struct {
	uri       string
	logDir    string
	log       *slog.Logger
	run       *runDir
	keepalive int // seconds between keepalives

	requests *pool // ACPI and resume: need libvirt's job lock, up to 30 s
	agents   *pool // guest agent calls: up to 60 s
	destroys *pool // up to 40 s
	queries  *pool
	pools    []*pool // these and its migrators', for Close

	up    atomic.Bool
	calls calls
}

// New returns a driver; it connects at the first call, or by Run.
func New(c Config) *Driver {
	if system(c.URI) {
		c.RunDir, c.LogDir = cmp.Or(c.RunDir, systemRunDir), cmp.Or(c.LogDir, systemLogDir)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Driver{uri: c.URI, logDir: c.LogDir, log: c.Logger, run: newRunDir(c.RunDir), keepalive: keepaliveSeconds}
	d.requests = d.newPool("requests", requestConns, 1)
	d.agents = d.newPool("agents", agentConns, 0)
	d.destroys = d.newPool("destroys", destroyConns, 0)
	d.queries = d.newPool("queries", queryConns, 0)
	return d
}

func system(uri string) bool {
	uri, _, _ = strings.Cut(uri, "?")
	return uri == "qemu:///system" || uri == "qemu+unix:///system"
}

// Up reports whether Run holds a working connection to libvirt.
func (d *Driver) Up() bool { return d.up.Load() }

// Close closes all connections. It cannot cancel calls that are under way: it waits for
// them for half a second and fails if some still hang. Those end by themselves, and their
// connections with them, when libvirt answers or ends, or when its own timeouts expire.
// Calls after Close fail with ErrUnavailable.
func (d *Driver) Close() error {
	for _, p := range d.pools {
		p.close()
	}
	select {
	case <-d.calls.close():
		return nil
	case <-time.After(closeTimeout):
		return errors.New("close libvirt connections: calls still hang in libvirt")
	}
}

// connect opens a connection. It may hang as long as libvirtd does.
func (d *Driver) connect() (*libvirt.Connect, error) {
	if err := loop(); err != nil {
		return nil, fmt.Errorf("libvirt's event loop: %w", plain(err))
	}
	c, err := libvirt.NewConnect(d.uri)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.uri, plain(err))
	}
	return c, nil
}

// alive asks locally (virConnectIsAlive): the answer comes from the end of file, or the
// keepalive.
func alive(c *libvirt.Connect) bool {
	ok, err := c.IsAlive()
	return err == nil && ok
}

// calls counts the goroutines that may be inside libvirt.
type calls struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// start runs f in a goroutine, or returns false after close.
func (c *calls) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// close prevents new starts; the channel is closed when all have ended.
func (c *calls) close() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	idle := make(chan struct{})
	go func() { c.wg.Wait(); close(idle) }()
	return idle
}

// answered waits for the result of a call, at most until ctx ends.
func answered(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("libvirt has not answered in time: %w", ctx.Err())
	}
}

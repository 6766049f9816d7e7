package migratable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const guestUUID = "6ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"

// domainOf returns a domain with these devices.
func domainOf(devices string) hypervisor.Definition {
	return hypervisor.Definition{DropsCaches: true, XML: `<domain type='kvm'><name>ns_vm</name><uuid>` + guestUUID +
		`</uuid><os><type arch='x86_64' machine='pc'>hvm</type></os><devices><emulator>/usr/bin/qemu-system-x86_64</emulator>` + devices + `</devices></domain>`}
}

func diskAt(path, cache, more string) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'%s/><source file='%s'/><target dev='vda' bus='virtio'/>%s</disk>`, cache, path, more)
}

func guestOf(devices string) Guest {
	return Guest{
		Domain:     domainOf(devices),
		Agreed:     tunnel.Agreement{Domain: "ns_vm", UUID: guestUUID, Paths: []string{"/images", "/dev/vg"}},
		SharedFile: func(path string) (bool, error) { return strings.HasPrefix(path, "/images/nfs/"), nil },
		Volume: func(claim string) (Volume, error) {
			v, ok := map[string]Volume{"shared": {}, "single": {Bound: "is not shared"}}[claim]
			if !ok {
				return v, errors.New("forbidden")
			}
			return v, nil
		},
	}
}

func TestWhetherAVMCanBeMoved(t *testing.T) {
	old := func(g *Guest) { g.Domain.DropsCaches = false }
	native := func(g *Guest) { g.Native = true }
	for name, c := range map[string]struct {
		devices         string
		change          func(*Guest)
		reason, message string // "": it can be moved
	}{
		"without disks":              {},
		"shared file":                {devices: diskAt("/images/nfs/a", "", "")},
		"block device":               {devices: `<disk type='block' device='disk'><source dev='/dev/vg/a'/><target dev='vda' bus='virtio'/></disk>`},
		"no medium":                  {devices: `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>`},
		"local file, read-only":      {devices: diskAt("/images/a.iso", "", "<readonly/>")},
		"cache that QEMU drops":      {devices: diskAt("/images/nfs/a", " cache='writeback'", "")},
		"cache none, old QEMU":       {devices: diskAt("/images/nfs/a", " cache='none'", ""), change: old},
		"shareable, old QEMU":        {devices: diskAt("/images/nfs/a", "", "<shareable/>"), change: old},
		"cache writeback, old QEMU":  {diskAt("/images/nfs/a", " cache='writeback'", ""), old, ReasonDisks, `disk /images/nfs/a has cache mode "writeback"`},
		"local file":                 {diskAt("/images/a", " cache='none'", ""), nil, ReasonDisks, "disk /images/a is on a local file system"},
		"the second disk is local":   {diskAt("/images/nfs/a", "", "") + diskAt("/images/b", "", ""), nil, ReasonDisks, "disk /images/b is on"},
		"a file that is not allowed": {diskAt("/srv/a", "", ""), nil, ReasonDisks, "see --migration-allow-paths"},
		"network disk":               {`<disk type='network' device='disk'><target dev='vda' bus='virtio'/></disk>`, nil, ReasonDisks, `"network"`},
		"host device":                {`<hostdev mode='subsystem' type='pci' managed='yes'/>`, nil, ReasonHostDevice, "hostdev"},
		"virtiofs":                   {`<filesystem type='mount'><driver type='virtiofs'/></filesystem>`, nil, ReasonVirtIOFS, "filesystem"},
		"shared memory":              {`<shmem name='a'/>`, nil, ReasonDomain, "shmem"},
		"a TPM":                      {devices: `<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>`},
		"a TPM on shared storage": {`<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>`, func(g *Guest) {
			g.SharedFile = func(path string) (bool, error) { return path == "/var/lib/libvirt/swtpm", nil }
		}, ReasonDomain, "/var/lib/libvirt/swtpm, which is on a shared file system"},
		"a snapshot":            {"", func(g *Guest) { g.Domain.Snapshots = 2 }, ReasonDomain, "keeps 2 of this one: virsh snapshot-delete"},
		"autostart":             {"", func(g *Guest) { g.Domain.Autostart = true }, ReasonAutostart, "virsh autostart --disable"},
		"a launcher that stays": {"", func(g *Guest) { g.Launcher.Reason = "launcher pod p is pinned" }, ReasonLauncher, "launcher pod p is pinned"},
		"a claim of one node":   {"", func(g *Guest) { g.Launcher.Claims = []string{"shared", "single"} }, ReasonDisks, "claim single is not shared"},
		"claims of many nodes":  {"", func(g *Guest) { g.Launcher.Claims = []string{"shared"} }, "", ""},
		"no listener":           {"", func(g *Guest) { g.Off = "cannot listen" }, ReasonOff, "cannot listen"},
		"no domain at all":      {"", func(g *Guest) { g.Domain.XML = "<domain" }, ReasonDomain, "cannot be read"},
		"native, a file that no node would let in": {devices: diskAt("/images/nfs/../nfs/a", "", ""), change: native},
		"native, network disk":                     {devices: `<disk type='network' device='disk'><source protocol='rbd' name='a'/><target dev='vda' bus='virtio'/></disk>`, change: native},
		"native, local file":                       {diskAt("/srv/a", "", ""), native, ReasonDisks, "disk /srv/a is on a local file system"},
		"native, host device":                      {`<hostdev mode='subsystem' type='pci' managed='yes'/>`, native, ReasonHostDevice, "libvirt would not send it"},
		"native, virtiofs":                         {`<filesystem type='mount'><driver type='virtiofs'/></filesystem>`, native, ReasonVirtIOFS, "filesystem"},
		"native, far too large":                    {"", func(g *Guest) { g.Native, g.Domain.XML = true, strings.Repeat(" ", 2<<20) }, ReasonDomain, "bytes"},
		"far too large":                            {"", func(g *Guest) { g.Domain.XML = strings.Repeat(" ", 2<<20) }, ReasonDomain, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			g := guestOf(c.devices)
			if c.change != nil {
				c.change(&g)
			}
			is, err := Judge(g)
			want := "False"
			if c.reason == "" {
				want = "True"
			}
			if err != nil || is.Status != want || is.Reason != c.reason || !strings.Contains(is.Message, c.message) ||
				strings.Contains(is.Message, "\n") || len(is.Message) > maxMessage {
				t.Errorf("%+v, %v; want %s %s %q", is, err, want, c.reason, c.message)
			}
		})
	}
}

// fakeAPI is an API server with one VMI.
type fakeAPI struct {
	mu    sync.Mutex // around all that the test changes
	vmi   VMI
	err   error
	calls int
	asked int // about claims
	told  int // Events
}

func (t *fakeAPI) Event(_ VMI, reason, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if reason == "NoDomain" && strings.HasSuffix(message, " ns_vm") {
		t.told++
	}
}

func (t *fakeAPI) Volume(context.Context, string, string) (Volume, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	return Volume{}, t.err
}

func (t *fakeAPI) OfNode() []VMI {
	t.mu.Lock()
	defer t.mu.Unlock()
	return []VMI{t.vmi}
}

func (t *fakeAPI) SetLiveMigratable(_ context.Context, _ VMI, is Verdict) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	if t.err == nil {
		t.vmi.Shown = is
	}
	return t.err
}

func TestTheConditionFollowsTheVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Given a VM that is not guarded yet.
		guest, running := guestOf(""), false
		var looks int
		api := &fakeAPI{vmi: VMI{Namespace: "ns", Name: "vm", UID: "u"}}
		c := &Conditions{
			VMIs: api, Log: slog.New(slog.DiscardHandler),
			Running: func(string) bool {
				api.mu.Lock()
				defer api.mu.Unlock()
				return running
			},
			Look: func(context.Context, string) (Guest, error) {
				api.mu.Lock()
				defer api.mu.Unlock()
				looks++
				return guest, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		after := func(d time.Duration, what, status string, calls int) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			api.mu.Lock()
			defer api.mu.Unlock()
			if api.vmi.Shown.Status != status || api.calls != calls {
				t.Errorf("%s: %q after %d calls, want %q after %d", what, api.vmi.Shown.Status, api.calls, status, calls)
			}
		}
		after(time.Second, "not guarded", "", 0)
		set := func(f func()) {
			api.mu.Lock()
			defer api.mu.Unlock()
			f()
		}
		// When it is guarded, the condition is there within a second, and
		// stays.
		set(func() { running = true })
		after(time.Second, "guarded", "True", 1)
		after(10*recheckInterval, "unchanged", "True", 1)
		if looks > 12 {
			t.Errorf("%d looks in %v", looks, 10*recheckInterval)
		}
		// When a host device appears without an event.
		set(func() { guest = guestOf(`<hostdev mode='subsystem' type='usb'/>`) })
		after(recheckInterval+time.Second, "host device", "False", 2)
		// When the API server refuses, it is asked once a minute.
		set(func() { guest, api.err = guestOf(""), errors.New("refused") })
		c.Changed("ns_vm")
		after(time.Second, "refused", "False", 3)
		after(3*retryInterval, "refused", "False", 6)
		set(func() { api.err = nil })
		after(retryInterval, "taken", "True", 7)
		// When it is being shut down, nothing is written.
		set(func() { running, guest = false, guestOf(`<hostdev mode='subsystem' type='usb'/>`) })
		c.Changed("ns_vm")
		after(2*recheckInterval, "shutting down", "True", 7)
	})
}

// Given a VM whose launcher changes all the time. Then the check of the others is not put off.
func TestOneVMsChangesDoNotPutOffTheCheckOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{vmi: VMI{Namespace: "ns", Name: "vm", UID: "u"}}
		var running atomic.Bool
		c := &Conditions{
			VMIs: api, Log: slog.New(slog.DiscardHandler), Running: func(string) bool { return running.Load() },
			Look: func(context.Context, string) (Guest, error) { return guestOf(""), nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		<-time.After(2 * attempts * debounce)
		running.Store(true)
		c.Changed("ns_vm")
		for range 20 {
			c.Changed("ns_other")
			<-time.After(debounce / 4)
		}
		synctest.Wait()
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.vmi.Shown.Status != "True" {
			t.Errorf("%q", api.vmi.Shown.Status)
		}
	})
}

// Given a launcher of a VM without a domain of its name, as one that was defined by another. When a
// minute has passed, then an Event and the condition name the domain that is awaited. What ends
// otherwise is a launcher whose guest runs on.
func TestALauncherWithoutADomainIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{vmi: VMI{Namespace: "ns", Name: "vm", UID: "u", Launched: true}}
		var running atomic.Bool
		c := &Conditions{
			VMIs: api, Log: slog.New(slog.DiscardHandler), Running: func(string) bool { return running.Load() },
			Look:   func(context.Context, string) (Guest, error) { return guestOf(""), nil },
			Absent: func(context.Context, string) (bool, bool) { return !running.Load(), true },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		shows := func(after time.Duration, want Verdict, events int) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			api.mu.Lock()
			defer api.mu.Unlock()
			if got := api.vmi.Shown; got.Status != want.Status || got.Reason != want.Reason || api.told != events {
				t.Errorf("%+v and %d Events, want %+v and %d", got, api.told, want, events)
			}
		}
		shows(50*time.Second, Verdict{}, 0)
		shows(2*time.Minute, Verdict{Status: "False", Reason: "NoDomain"}, 1)
		shows(time.Hour, Verdict{Status: "False", Reason: "NoDomain"}, 1)
		running.Store(true)
		c.Changed("ns_vm")
		shows(time.Second, Verdict{Status: "True"}, 1)
	})
}

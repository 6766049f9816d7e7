package migratable

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// inLauncher returns a VM whose process is in its launcher pod, and that can be moved.
func inLauncher() Guest {
	g := guestOf("")
	return Guest{InLauncher: true, Moving: signals.Moving{Able: signals.AbleOK}, SharedFile: g.SharedFile, Volume: g.Volume}
}

// Given VMs in their launcher pods. Then one can be moved only if its launcher can send it and
// nothing of its pod is this node's alone. Otherwise a drain would begin what cannot succeed, or
// the guest would go on with another disk.
func TestWhetherAVMInItsPodCanBeMoved(t *testing.T) {
	for name, c := range map[string]struct {
		change          func(*Guest)
		reason, message string // "": it can be moved
	}{
		"able":                     {func(*Guest) {}, "", ""},
		"no part in migrations":    {func(g *Guest) { g.Off = "cannot listen" }, ReasonOff, "cannot listen"},
		"an old shim":              {func(g *Guest) { g.Moving = signals.Moving{} }, ReasonInLauncher, "the launcher's shim is too old to be moved"},
		"a monitor that is silent": {func(g *Guest) { g.Moving.Able = "the monitor does not answer" }, ReasonInLauncher, "cannot send its guest: the monitor does not answer"},
		"a shim that says nothing": {func(g *Guest) { g.Moving = signals.Moving{Guest: signals.GuestRunning} }, ReasonInLauncher, "cannot send its guest: it does not say why"},
		"a launcher that stays":    {func(g *Guest) { g.Launcher.Reason = "launcher pod p is pinned" }, ReasonLauncher, "pinned"},
		"a host device":            {func(g *Guest) { g.Launcher.Device = "host device nvidia.com/gpu" }, ReasonHostDevice, "nvidia.com/gpu"},
		"a disk of its pod":        {func(g *Guest) { g.PodDisk = "/scratch/disk" }, ReasonDisks, "disk /scratch/disk is in an emptyDir"},
		"a claim of one node":      {func(g *Guest) { g.Launcher.Claims = []string{"shared", "single"} }, ReasonDisks, "claim single is not shared"},
		"a local directory":        {func(g *Guest) { g.Launcher.Paths = []string{"/images/nfs/a", "/images"} }, ReasonDisks, "/images, which the launcher may write to, is on a local file system"},
		"a shared directory":       {func(g *Guest) { g.Launcher.Paths = []string{"/images/nfs/a"} }, "", ""},
		"a claim of many nodes":    {func(g *Guest) { g.Launcher.Claims = []string{"shared"} }, "", ""},
		"an evil text":             {func(g *Guest) { g.Moving.Able = strings.Repeat("a\n", 1000) }, ReasonInLauncher, "guest: a"},
	} {
		t.Run(name, func(t *testing.T) {
			g := inLauncher()
			c.change(&g)
			is, err := Judge(g)
			want := "False"
			if c.reason == "" {
				want = "True"
			}
			if err != nil || is.Status != want || is.Reason != c.reason || !strings.Contains(is.Message, c.message) ||
				strings.Contains(is.Message, "\n") || len(is.Message) > maxMessage+len("…") {
				t.Errorf("%+v, %v; want %s %s %q", is, err, want, c.reason, c.message)
			}
		})
	}
}

func TestAVolumeThatIsNotKnownIsNoVerdict(t *testing.T) {
	g := inLauncher()
	g.Launcher.Claims = []string{"another"}
	if is, err := Judge(g); err == nil || is != (Verdict{}) {
		t.Errorf("a claim that cannot be read: %+v, %v", is, err)
	}
	g = inLauncher()
	g.Launcher.Paths = []string{"/images"}
	g.SharedFile = func(string) (bool, error) { return false, errors.New("hangs") }
	if is, err := Judge(g); err == nil || is != (Verdict{}) {
		t.Errorf("a file system that hangs: %+v, %v", is, err)
	}
}

// Given a VM with a claim, whose launcher changes its directory all the time. Then the API server
// is asked about the claim once, and again in 5 minutes. Otherwise a tenant
// could have it flooded.
func TestATenantCausesNoRequestsAboutClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{vmi: VMI{Namespace: "ns", Name: "vm", UID: "u", Launcher: Launcher{Claims: []string{"data"}}}}
		c := &Conditions{
			VMIs: api, Log: slog.New(slog.DiscardHandler),
			Running: func(string) bool { return true },
			Look:    func(context.Context, string) (Guest, error) { return inLauncher(), nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		for begin := time.Now(); time.Since(begin) < 2*recheckInterval-time.Second; <-time.After(debounce) {
			c.Changed("ns_vm")
		}
		synctest.Wait()
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.vmi.Shown.Status != "True" || api.asked != 2 {
			t.Errorf("%+v, asked %d times", api.vmi.Shown, api.asked)
		}
	})
}

package nodeagent

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/inpod"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/kit"
)

// seen is a launcher directory with one VM.
type seen struct {
	inpod.Directory

	says signals.Asking
}

func (s seen) Look() (watch.View, error) {
	return watch.View{Directory: grace.Directory{Present: true, Registered: true}, Asking: s.says}, nil
}

// Where migrations are switched off, KubeVirt or nobody says whether a libvirt's
// domain can be moved; of a VM in its launcher pod only this agent can.
func TestWithoutMigrationsOnlyVMsInTheirPodsAreJudged(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n := &node{Options: &Options{}, log: log, driver: hypervisors{launchers: inpod.New(), libvirt: libvirt.New(libvirt.Config{Logger: log})}}
	t.Cleanup(func() { kit.Must(t, n.driver.close()) })
	for name, asks := range map[string]string{"pod": signals.AsksLauncher, "libvirt": ""} {
		_, err := n.driver.launchers.Directory(name, "", seen{says: signals.Asking{Asks: asks}}).Look()
		kit.Must(t, err)
	}
	c := n.conditions()
	if c == nil {
		t.Fatal("nothing is judged")
	}
	g, err := c.Look(t.Context(), "pod")
	if err != nil || !g.InLauncher {
		t.Errorf("%+v, %v; want a VM in its launcher", g, err)
	}
	if _, err := c.Look(t.Context(), "libvirt"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a domain of libvirt's is judged: %v", err)
	}
	n.DryRun = true
	if n.conditions() != nil {
		t.Error("a dry run tells the API server")
	}
}

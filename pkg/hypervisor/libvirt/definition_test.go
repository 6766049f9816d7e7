//go:build !unit

package libvirt

import (
	"errors"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestADomainIsDefinedAsAMigrationWouldSendIt(t *testing.T) {
	d, _ := open(t)
	m := d.Migrator()
	g := shared.Boot(t, node.Spec{Firmware: true, Persistent: true})
	judge := func() migratable.Verdict {
		t.Helper()
		is, err := m.Define(bounded(t), g.Domain)
		if err != nil {
			t.Fatal(err)
		}
		v, err := migratable.Judge(migratable.Guest{
			Domain: is, Agreed: tunnel.Agreement{Domain: g.Domain, UUID: g.UUID, Paths: []string{shared.Dir, node.CacheDir()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := judge(); v.Status != "True" {
		t.Errorf("a guest of this libvirt: %+v", v)
	}
	// When libvirt starts the domain by itself, it cannot be moved.
	g.Virsh(t, "autostart")
	if v := judge(); v.Reason != migratable.ReasonAutostart {
		t.Errorf("with autostart: %+v", v)
	}
	_, instance, err := m.Look(bounded(t), g.Domain)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Migrate(bounded(t), hypervisor.Outgoing{Domain: g.Domain, Instance: instance, URI: "qemu+unix:///system?socket=/nowhere"})
	if err == nil || !strings.Contains(err.Error(), "virsh autostart --disable") {
		t.Errorf("migrate with autostart: %v", err)
	}
	g.Virsh(t, "autostart", "--disable")
	// When it does not run, or is missing, there is no definition.
	g.Virsh(t, "destroy")
	for _, name := range []string{g.Domain, "no_such"} {
		if is, err := m.Define(bounded(t), name); !errors.Is(err, hypervisor.ErrNotFound) || is.XML != "" {
			t.Errorf("%s: %+v, %v", name, is, err)
		}
	}
}

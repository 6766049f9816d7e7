package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Given the domain of docs/first-vm.md as this machine's libvirt defines it, emulated in place of
// KVM, and its disks on a shared file system. Then agents with the flag that the document names
// take it, and agents without it do not.
func TestTheExampleForRealUseCanBeMoved(t *testing.T) {
	text := strings.Replace(read(t, "deploy/examples/domain-kvm.xml"), "type='kvm'", "type='qemu'", 1)
	file := filepath.Join(machine.Dir, "domain-kvm.xml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	machine.Virsh(t, "define", "--validate", file)
	defer machine.Virsh(t, "undefine", "default_example")
	id := strings.TrimSpace(machine.Virsh(t, "domuuid", "default_example"))
	guest := migratable.Guest{
		Domain:     hypervisor.Definition{XML: machine.Virsh(t, "dumpxml", "default_example"), DropsCaches: true},
		Agreed:     tunnel.Agreement{Domain: "default_example", UUID: id, Paths: []string{"/var/lib/libvirt/images"}, Networks: []string{"br0"}},
		SharedFile: func(string) (bool, error) { return true, nil },
	}
	if !strings.Contains(read(t, "docs/first-vm.md"), "migration-allow-networks: br0") {
		t.Error("docs/first-vm.md does not allow the bridge")
	}
	if v, err := migratable.Judge(guest); err != nil || v.Status != "True" {
		t.Errorf("LiveMigratable: %+v, %v", v, err)
	}
	guest.Agreed.Networks = nil
	if v, err := migratable.Judge(guest); err != nil || !strings.Contains(v.Message, "br0") {
		t.Errorf("without the flag: %+v, %v", v, err)
	}
	if native := machine.Virsh(t, "domxml-to-native", "qemu-argv", "--domain", "default_example"); !strings.Contains(native, "/var/lib/libvirt/images/example.qcow2") {
		t.Errorf("QEMU's command line: %s", native)
	}
}

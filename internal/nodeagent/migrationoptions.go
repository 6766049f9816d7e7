package nodeagent

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/nodemigration"
)

// MigrationOptions are the flags about live migrations.
type MigrationOptions struct {
	Listen, Address, CANamespace string
	AllowPaths, AllowNetworks    []string
	URI                          string

	uri nodemigration.URITemplate // of URI
}

func (o *MigrationOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "migration-listen", "", "where other nodes' agents bring VMs that are live-migrated here (:9470 is usual); empty = no live migrations from or to this node")
	f.StringVar(&o.Address, "migration-address", "", "the address that other nodes' agents reach this one at; $POD_IP or this node's first address; with the port of --migration-listen")
	f.StringVar(&o.CANamespace, "migration-ca-namespace", "vmgrace-system", "where the cluster-controller's ConfigMap with the authority for nodes' certificates is")
	f.StringSliceVar(&o.AllowPaths, "migration-allow-paths", defaultPaths(), "directories or files of this host that a VM which is live-migrated here may name: disks, kernels, firmware, logs")
	f.StringSliceVar(&o.AllowNetworks, "migration-allow-networks", nil, "bridges and libvirt networks of this host that such a VM may be connected to")
	f.StringVar(&o.URI, "migration-uri", "", "has libvirt send and receive VMs by itself: where it reaches another node's libvirt, such as qemu+tls://{{address}}/system with the host of that one's --migration-address; the same on all nodes. What arrives is not checked then, and who may send it is libvirt's matter; empty = through the agents")
}

// defaultPaths are where libvirt and distributions keep images and firmware.
func defaultPaths() []string {
	return []string{"/var/lib/libvirt/images", "/var/lib/libvirt/boot", "/usr/share/OVMF", "/usr/share/AAVMF", "/usr/share/edk2", "/usr/share/qemu", "/usr/share/seabios"}
}

func (o *MigrationOptions) check() (err error) {
	if o.uri, err = nodemigration.ParseURITemplate(o.URI); err != nil {
		return fmt.Errorf("--migration-uri %q: %w", o.URI, err)
	}
	if o.Listen == "" && o.uri.Native() {
		return errors.New("--migration-uri needs --migration-listen: the agents of two nodes agree on each migration")
	}
	if o.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return fmt.Errorf("--migration-listen %s: %w", o.Listen, err)
	}
	for _, p := range o.AllowPaths {
		if !filepath.IsAbs(p) || filepath.Clean(p) == "/" {
			return fmt.Errorf("--migration-allow-paths %q: must be a path below /", p)
		}
	}
	return nil
}

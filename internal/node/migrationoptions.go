package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
)

// MigrationOptions are the flags about live migrations.
type MigrationOptions struct {
	Listen, Address, CANamespace string
	AllowPaths, AllowFirmware    []string
	AllowNetworks, AllowListen   []string
	URI                          string

	uri migrate.URITemplate // of URI
}

func (o *MigrationOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "migration-listen", "", "where other nodes' agents bring VMs that are live-migrated here (:9470 is usual); empty = no live migrations from or to this node")
	f.StringVar(&o.Address, "migration-address", "", "the address that other nodes' agents reach this one at; $POD_IP or this node's first address; with the port of --migration-listen")
	f.StringVar(&o.CANamespace, "migration-ca-namespace", "vmgrace-system", "where the cluster-controller's ConfigMap with the authority for nodes' certificates is")
	f.StringSliceVar(&o.AllowPaths, "migration-allow-paths", defaultPaths(), "directories or files of this host that a VM which is live-migrated here may write to: disks, logs, nvram. It may read kernels and firmware there, too. Shared storage is to be mounted nosymfollow,nodev")
	f.StringSliceVar(&o.AllowFirmware, "migration-allow-firmware", nil, "directories or files of this host that such a VM may read firmware and kernels from, beside those of distributions and libvirt; never to be written to, whatever --migration-allow-paths says")
	f.StringSliceVar(&o.AllowNetworks, "migration-allow-networks", nil, "bridges and libvirt networks of this host that such a VM may be connected to: NAME, with a VLAN NAME.42, user for QEMU's own network")
	f.StringSliceVar(&o.AllowListen, "migration-allow-listen", nil, "addresses that VNC and SPICE of such a VM may listen on, beside 127.0.0.1 and ::1")
	f.StringVar(&o.URI, "migration-uri", "", "has libvirt send and receive VMs by itself: where it reaches another node's libvirt, such as qemu+tls://{{address}}/system with the host of that one's --migration-address; the same on all nodes. What arrives is not checked then, and who may send it is libvirt's matter; empty = through the agents")
}

// defaultPaths returns where libvirt keeps images.
func defaultPaths() []string { return []string{"/var/lib/libvirt/images"} }

// cpusPerCPU is how many processors one arriving VM may have for each of this node's.
const cpusPerCPU = 16

// allowed is what an arriving domain may have of this node, whose root directory is root.
func (o *MigrationOptions) allowed(root string) tunnel.Agreement {
	return tunnel.Agreement{
		Paths: o.AllowPaths, Firmware: o.AllowFirmware, Networks: o.AllowNetworks, Files: tunnel.NewFiles(root),
		Memory: memory(), CPUs: cpusPerCPU * runtime.NumCPU(), Listen: o.AllowListen,
		Processors: online("cpu"), NUMANodes: online("node"),
	}
}

// online is what this node has online of cpu or node, as the kernel lists it, "" if it does
// not say.
func online(of string) string {
	text, _ := os.ReadFile("/sys/devices/system/" + of + "/online") // unknown is ""
	return strings.TrimSpace(string(text))
}

// rootOf returns the node's root directory. If even root may not look at process 1, as in
// an unprivileged container that is itself the node, it returns this process's own.
func rootOf(node string, log *slog.Logger) string {
	fd, err := unix.Open(node, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		log.Warn("the files of arriving VMs are looked at from this agent's own root directory", "err", fmt.Errorf("open %s: %w", node, err))
		return "/"
	}
	if err == nil {
		_ = unix.Close(fd) // nothing was written
	}
	return node
}

// memory is this node's memory in bytes, 0 if it is unknown.
func memory() uint64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return s.Totalram * uint64(s.Unit)
}

func (o *MigrationOptions) check() (err error) {
	if o.uri, err = migrate.ParseURITemplate(o.URI); err != nil {
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
	return cmp.Or(belowRoot("--migration-allow-paths", o.AllowPaths), belowRoot("--migration-allow-firmware", o.AllowFirmware))
}

func belowRoot(flag string, paths []string) error {
	for _, p := range paths {
		if !filepath.IsAbs(p) || filepath.Clean(p) == "/" {
			return fmt.Errorf("%s %q: must be a path below /", flag, p)
		}
	}
	return nil
}

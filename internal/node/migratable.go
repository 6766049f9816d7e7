package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/podcondition"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// statTimeout is for a file system that does not answer.
const statTimeout = 2 * time.Second

// conditions keeps LiveMigratable of this node's VMIs. If migrations are off, another
// component may set it, except for VMs whose process is in their pod.
func (n *node) conditions() *migratable.Conditions {
	if n.DryRun {
		return nil
	}
	files := &files{root: nodeRoot}
	return &migratable.Conditions{
		VMIs: n.vmis, Log: n.log,
		Look: func(ctx context.Context, domain string) (migratable.Guest, error) {
			return n.look(ctx, domain, files)
		},
		Running: func(domain string) bool { return n.agent.Phase(domain) == grace.Running },
		Absent: func(ctx context.Context, domain string) (absent, ours bool) {
			_, err := n.driver.Get(ctx, domain)
			return n.agent.Phase(domain) == "" && errors.Is(err, hypervisor.ErrNotFound), n.moves != nil || n.driver.libvirt == nil || n.driver.launchers.Claims(domain)
		},
	}
}

// podConditions keeps ShuttingDown of this node's launcher pods. It returns nil in a dry run.
func (n *node) podConditions() *podcondition.Conditions {
	if n.DryRun {
		return nil
	}
	return podcondition.New(n.vmis, func(domain string) grace.Summary { return n.agent.Summary(domain) }, n.log)
}

func (n *node) clusterChanged(namespace, name string) {
	if n.shown != nil {
		n.shown.Changed()
	}
	n.agent.ClusterChanged(namespace, name)
	if name == "" {
		n.changed("")
		return
	}
	n.changed(grace.DomainName(namespace, name))
}

func (n *node) domainChanged(e hypervisor.Event) {
	if n.moves != nil && !e.Stopped.IsZero() {
		n.moves.sides.Stopped(e.Name, e.Stopped)
	}
	// libvirt answers nothing about a domain whose migration it completes.
	if n.moves != nil && hypervisor.InLauncher(grace.Instance{UUID: e.UUID}) {
		n.moves.sides.DomainChanged(e.Name)
	}
	n.agent.DomainChanged(e)
	n.changed(e.Name)
}

// changed schedules the check of a VM, of all VMs for "".
func (n *node) changed(domain string) {
	if n.migratable != nil {
		n.migratable.Changed(domain)
	}
}

// look collects the facts that decide whether a VM can be moved.
func (n *node) look(ctx context.Context, domain string, files *files) (migratable.Guest, error) {
	g := migratable.Guest{SharedFile: files.shared}
	if n.moves != nil {
		g.Off = n.moves.off()
	}
	switch {
	case n.driver.launchers.Claims(domain), n.driver.libvirt == nil:
		g.InLauncher = true
		return n.lookInLauncher(ctx, domain, g)
	case n.moves == nil:
		return g, hypervisor.ErrNotFound // others judge it
	}
	d, err := n.driver.libvirt.Get(ctx, domain)
	if err != nil {
		return g, err //nolint:wrapcheck // it says what was tried
	}
	if g.Domain, err = n.moves.migrator.Define(ctx, domain); err != nil {
		return g, err //nolint:wrapcheck // as above
	}
	g.Native = n.Migration.uri.Native()
	g.Agreed = n.moves.allowed
	g.Agreed.Domain, g.Agreed.UUID = domain, d.Instance.UUID
	return g, nil
}

// lookInLauncher adds what the launcher says of a VM whose process is in its pod.
func (n *node) lookInLauncher(ctx context.Context, domain string, g migratable.Guest) (migratable.Guest, error) {
	if n.moves == nil {
		g.Off = "this node's agent takes no part in migrations: see --migration-listen"
		return g, nil
	}
	var err error
	if g.Moving, err = n.driver.launchers.Moving(ctx, domain); err != nil || g.Moving.Able != signals.AbleOK {
		return g, err //nolint:wrapcheck // as below
	}
	g.PodDisk, err = n.driver.launchers.PodDisk(domain)
	return g, err //nolint:wrapcheck // it says what was tried
}

// files are those of a node.
type files struct {
	root string
	busy atomic.Bool // a file system does not answer
}

var errHangs = errors.New("a file system of this node does not answer")

// sharedFileSystems are those that libvirt takes for shared (lv9 virFileIsSharedFS,
// linux/magic.h). FUSE may be one; libvirt knows.
func sharedFileSystems() map[uint32]bool {
	return map[uint32]bool{
		unix.NFS_SUPER_MAGIC: true, unix.OCFS2_SUPER_MAGIC: true, unix.AFS_SUPER_MAGIC: true, unix.AFS_FS_MAGIC: true,
		unix.CIFS_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true, unix.CEPH_SUPER_MAGIC: true,
		unix.FUSE_SUPER_MAGIC: true,
		0x01161970:            true, // GFS2
		0x47504653:            true, // GPFS
		0x51626d6e:            true, // Quobyte
		0x61636673:            true, // ACFS
		0x19830326:            true, // BeeGFS
	}
}

// shared reports whether a file of the node is on a shared file system. One that hangs
// costs one thread, however often it is asked.
func (f *files) shared(path string) (bool, error) {
	if !f.busy.CompareAndSwap(false, true) {
		return false, errHangs
	}
	ctx, cancel := context.WithTimeout(context.Background(), statTimeout)
	defer cancel()
	shared := false
	err := durable.Within(ctx, "a file system of this node", func() error {
		defer f.busy.Store(false)
		kind, err := fileSystem(f.root, path)
		shared = sharedFileSystems()[kind]
		return err
	})
	return err == nil && shared, err
}

// fileSystem is the kind of the file system that a file below root is on. Links are
// followed as if root were the root.
func fileSystem(root, path string) (uint32, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	fd, err := unix.Openat2(at, filepath.Clean("/" + path)[1:], &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return 0, fmt.Errorf("open it: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // as above
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return 0, fmt.Errorf("statfs: %w", err)
	}
	return uint32(s.Type), nil // its magic has 32 bits
}

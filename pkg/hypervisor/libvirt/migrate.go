package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// How many migrations and questions about them there may be at once. A migration uses its
// connection to its end; questions and aborts need another.
const (
	migrationConns = 8
	jobConns       = 4
	textConns      = 2
)

// Migrator moves domains to other hosts and receives them.
type Migrator struct {
	driver *Driver
	moves  *pool
	jobs   *pool
	texts  *pool
}

// Migrator returns a migrator. It connects at the first call, and is closed with the
// driver.
func (d *Driver) Migrator() *Migrator {
	return &Migrator{driver: d, moves: d.newPool("migrations", migrationConns, 0), jobs: d.newPool("jobs", jobConns, 0), texts: d.newPool("definitions", textConns, 0)}
}

// flagsOf returns how libvirt sends: live, from one libvirt to the other, and paused on
// arrival.
func flagsOf(o hypervisor.Outgoing) libvirt.DomainMigrateFlags {
	flags := libvirt.MIGRATE_LIVE | libvirt.MIGRATE_PEER2PEER | libvirt.MIGRATE_PAUSED
	switch o.Transport {
	case hypervisor.TransportTunnelled:
		flags |= libvirt.MIGRATE_TUNNELLED
	case hypervisor.TransportNativeTLS:
		flags |= libvirt.MIGRATE_TLS
	case hypervisor.TransportNative:
	}
	if o.AutoConverge {
		flags |= libvirt.MIGRATE_AUTO_CONVERGE
	}
	return flags
}

// Migrate sends a domain over the connection to the URI; it arrives paused. Migrate
// returns when libvirt does, or when ctx ends, which does not end the migration: see
// Abort. After an error the domain may still be at the target.
func (m *Migrator) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	params := libvirt.DomainMigrateParameters{
		DestNameSet: true, DestName: o.Domain, // without it the domain's own XML would say
		BandwidthSet: o.Bandwidth > 0, Bandwidth: o.Bandwidth,
	}
	err := m.driver.with(ctx, m.moves, o.Domain, o.Instance, func(dom *libvirt.Domain) error {
		if starts, err := dom.GetAutostart(); err != nil || starts {
			return cmp.Or(err, errAutostart)
		}
		if o.Transport == hypervisor.TransportTunnelled {
			text, whole, err := sentXML(dom)
			if err != nil {
				return err
			}
			params.DestXMLSet, params.DestXML = whole, text
		}
		return dom.MigrateToURI3(o.URI, &params, flagsOf(o))
	})
	return failed("migrate", o.Domain, err)
}

// Progress returns how far an outgoing migration is. It fails with ErrState if there is
// none.
func (m *Migrator) Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error) {
	var p hypervisor.Progress
	err := m.driver.with(ctx, m.jobs, name, i, func(dom *libvirt.Domain) error {
		info, err := dom.GetJobStats(0)
		if err != nil {
			return err
		}
		if info.Type == libvirt.DOMAIN_JOB_NONE {
			return fmt.Errorf("%w: no job is under way", hypervisor.ErrState)
		}
		p = hypervisor.Progress{Total: info.DataTotal, Remaining: info.DataRemaining}
		return nil
	})
	if err != nil {
		return hypervisor.Progress{}, failed("ask for the progress of", name, err) // p may still be written to
	}
	return p, nil
}

// Abort ends an outgoing migration while memory is being sent. Later it has no
// effect, and libvirt says nothing (qemuDomainAbortJobFlags).
func (m *Migrator) Abort(ctx context.Context, name string, i grace.Instance) error {
	err := m.driver.with(ctx, m.jobs, name, i, func(dom *libvirt.Domain) error { return dom.AbortJob() })
	return failed("abort the migration of", name, err)
}

// Pause stops a domain that is being sent. Its job goes on. If the job fails, libvirt
// lets the domain run again (qemuMigrationSrcRestoreDomainState). A stopped domain stays
// stopped.
func (m *Migrator) Pause(ctx context.Context, name string, i grace.Instance) error {
	err := m.driver.with(ctx, m.jobs, name, i, func(dom *libvirt.Domain) error {
		switch stay, err := stayOf(dom); {
		case err != nil:
			return err
		case stay != hypervisor.StayBusy:
			return fmt.Errorf("%w: no job is under way", hypervisor.ErrState)
		}
		return dom.Suspend()
	})
	return failed("pause", name, err)
}

// Look returns what a domain is here. The instance has its process if that is known.
func (m *Migrator) Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error) {
	stay, uuid := hypervisor.StayUnknown, ""
	err := m.jobs.find(ctx, name, func(dom *libvirt.Domain) (err error) {
		if uuid, err = dom.GetUUIDString(); err != nil {
			return err
		}
		stay, err = stayOf(dom)
		return err
	})
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		return hypervisor.StayAbsent, grace.Instance{}, nil
	case err != nil:
		return hypervisor.StayUnknown, grace.Instance{}, failed("look at", name, err)
	}
	if run, err := m.driver.run.look(name); err == nil && run.uuid == uuid {
		return stay, run.instance(), nil
	}
	return stay, grace.Instance{UUID: uuid}, nil
}

// stayOf asks for the job first: without one the state does not change afterwards.
func stayOf(dom *libvirt.Domain) (hypervisor.Stay, error) {
	job, err := dom.GetJobInfo()
	// libvirt does not answer for the job of a domain that arrives: "migration statistics
	// are available only on the source host".
	arriving := errors.Is(err, libvirt.ERR_OPERATION_INVALID) || errors.Is(err, libvirt.ERR_OPERATION_UNSUPPORTED)
	if err != nil && !arriving {
		return hypervisor.StayUnknown, plain(err)
	}
	state, reason, err := dom.GetState()
	if err != nil {
		return hypervisor.StayUnknown, plain(err)
	}
	_, active := powerOf(state, reason)
	switch {
	case !active:
		return hypervisor.StayAbsent, nil
	case arriving || job.Type == libvirt.DOMAIN_JOB_BOUNDED || job.Type == libvirt.DOMAIN_JOB_UNBOUNDED:
		return hypervisor.StayBusy, nil
	case state == libvirt.DOMAIN_RUNNING || state == libvirt.DOMAIN_BLOCKED || state == libvirt.DOMAIN_PMSUSPENDED:
		return hypervisor.StayRunning, nil
	case state == libvirt.DOMAIN_CRASHED:
		return hypervisor.StayStopped, nil
	case state != libvirt.DOMAIN_PAUSED:
		return hypervisor.StayBusy, nil // it ends
	default:
		return stayOfPaused(libvirt.DomainPausedReason(reason)), nil
	}
}

func stayOfPaused(reason libvirt.DomainPausedReason) hypervisor.Stay {
	switch reason {
	case libvirt.DOMAIN_PAUSED_MIGRATION:
		return hypervisor.StayLeft
	case libvirt.DOMAIN_PAUSED_USER:
		return hypervisor.StayPaused
	case libvirt.DOMAIN_PAUSED_API_ERROR: // since libvirt 9.2
		return hypervisor.StayNotResumed
	default:
		return hypervisor.StayStopped
	}
}

// Resume lets a paused domain run, whatever paused it: the caller has made sure that it
// runs nowhere else. It leaves a running one as it is.
func (m *Migrator) Resume(ctx context.Context, name string, i grace.Instance) error {
	err := m.driver.with(ctx, m.jobs, name, i, func(dom *libvirt.Domain) error {
		switch stay, err := stayOf(dom); {
		case err != nil:
			return err
		case stay == hypervisor.StayRunning:
			return nil
		case stay == hypervisor.StayAbsent:
			return errOff
		default:
			return dom.Resume()
		}
	})
	return failed("resume", name, err)
}

// Left reports whether libvirt says that an instance which has ended here moved
// elsewhere: its log does, before QEMU's end (qemuProcessStop).
func (m *Migrator) Left(ctx context.Context, name string, i grace.Instance) (bool, error) {
	end, err := m.driver.Ended(ctx, name, i)
	return end == grace.EndMoved, err
}

// Remove ends a domain here, by force. A missing one is no error.
func (m *Migrator) Remove(ctx context.Context, name string, i grace.Instance) error {
	err := m.driver.with(ctx, m.jobs, name, i, func(dom *libvirt.Domain) error {
		return dom.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT)
	})
	if errors.Is(err, hypervisor.ErrNotFound) {
		return nil
	}
	return failed("remove", name, err)
}

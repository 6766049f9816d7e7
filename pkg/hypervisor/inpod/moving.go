package inpod

import (
	"context"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Moving looks at the VM's launcher directory, and returns what its launcher says of migrations.
// It is zero if the launcher is too old, or does not ask the guest itself. It fails with
// hypervisor.ErrNotFound if no directory is known.
func (d *Driver) Moving(ctx context.Context, name string) (signals.Moving, error) {
	v := d.vm(name)
	if v == nil {
		return signals.Moving{}, failed("look at", name, hypervisor.ErrNotFound)
	}
	view, err := v.lookWithin(ctx)
	if err != nil {
		return signals.Moving{}, failed("look at", name, err)
	}
	if !view.Registered || view.Asks != signals.AsksLauncher {
		return signals.Moving{}, nil
	}
	return view.Migration, nil
}

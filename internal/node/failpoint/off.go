//go:build !failpoint

package failpoint

import (
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Points are the points of one agent: none.
type Points struct{}

// New returns no points.
func New() Points { return Points{} }

// Disk returns d.
func (Points) Disk(d durable.Disk) durable.Disk { return d }

// Ports returns c.
func (Points) Ports(c agent.Config) agent.Config { return c }

// Migrations returns c.
func (Points) Migrations(c migrate.Config) migrate.Config { return c }

// Launchers returns notify.
func (Points) Launchers(notify func(name string)) func(name string) { return notify }

// Domains returns notify.
func (Points) Domains(notify func(hypervisor.Event)) func(hypervisor.Event) { return notify }

// VMs returns notify.
func (Points) VMs(notify func(namespace, name string)) func(namespace, name string) { return notify }

package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Names in the API of vmgrace.
const (
	// SourceNodeLabel and TargetNodeLabel name a migration's nodes: an agent watches the
	// migrations of its own node.
	SourceNodeLabel = "vmgrace.io/source-node"
	TargetNodeLabel = "vmgrace.io/target-node"
	// TakesMigrationsLabel is TakesMigrations on Nodes whose agent takes migrations. Target
	// pods prefer such Nodes.
	TakesMigrationsLabel = "vmgrace.io/takes-migrations"
	TakesMigrations      = "true"
	// Finalizer keeps a migration until it has ended.
	Finalizer = "vmgrace.io/migration"
	// SignerName is the signer of the agents' certificates. CommonNamePrefix precedes the
	// node in their subject.
	SignerName       = "vmgrace.io/node-agent"
	CommonNamePrefix = "vmgrace:node:"
	// CAName names the Secret and the ConfigMap of the agents' certificate authority. CAKey
	// is the ConfigMap's key.
	CAName = "vmgrace-migration-ca"
	CAKey  = "ca.crt"
)

// TargetPodName returns the name of a migration's target pod. It derives it from the
// migration's UID, so that a migration cannot have two.
func TargetPodName(vmi, migrationUID string) string {
	const most = 63 - 10
	sum := sha256.Sum256([]byte(migrationUID))
	name := kubevirt.LauncherPrefix + "-" + vmi
	name = strings.TrimRight(name[:min(len(name), most)], "-.")
	return name + "-" + hex.EncodeToString(sum[:4])
}

// StateOf returns a migration's state, never nil.
func StateOf(m *kubevirt.VirtualMachineInstanceMigration) *kubevirt.MigrationState {
	if m.Status.MigrationState == nil {
		return &kubevirt.MigrationState{}
	}
	return m.Status.MigrationState
}

// native reports whether the source's libvirt sends the guest directly.
func native(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return StateOf(m).Transport == kubevirt.TransportNative
}

// begun reports whether the source's agent may have started libvirt's migration. The agent
// writes Running before.
func begun(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == kubevirt.MigrationRunning || m.Status.Phase == kubevirt.MigrationSucceeded ||
		StateOf(m).StartTimestamp != nil
}

// NotBefore reports whether a migration has reached a phase, or is beyond it.
func NotBefore(m *kubevirt.VirtualMachineInstanceMigration, phase kubevirt.MigrationPhase) bool {
	order := kubevirt.MigrationPhases()
	return slices.Index(order, m.Status.Phase) >= slices.Index(order, phase)
}

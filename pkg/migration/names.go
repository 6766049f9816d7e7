package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Names of vmgrace's own.
const (
	// SourceNodeLabel and TargetNodeLabel on a migration are its nodes: an agent
	// watches the migrations of its own node.
	SourceNodeLabel = "vmgrace.io/source-node"
	TargetNodeLabel = "vmgrace.io/target-node"
	// Finalizer on a migration: it is to be ended before it is gone.
	Finalizer = "vmgrace.io/migration"
	// SignerName of the agents' certificates, CommonNamePrefix what comes before
	// the node in their subject.
	SignerName       = "vmgrace.io/node-agent"
	CommonNamePrefix = "vmgrace:node:"
	// CAName is the Secret and the ConfigMap of the agents' certificate
	// authority; CAKey is the ConfigMap's key.
	CAName = "vmgrace-migration-ca"
	CAKey  = "ca.crt"
)

// TargetPodName is the name of a migration's target pod. It follows from the
// migration, so that there cannot be two.
func TargetPodName(vmi, migrationUID string) string {
	const most = 63 - 10
	sum := sha256.Sum256([]byte(migrationUID))
	name := kubevirt.LauncherPrefix + "-" + vmi
	name = strings.TrimRight(name[:min(len(name), most)], "-.")
	return name + "-" + hex.EncodeToString(sum[:4])
}

// StateOf is a migration's state: never nil.
func StateOf(m *kubevirt.VirtualMachineInstanceMigration) *kubevirt.MigrationState {
	if m.Status.MigrationState == nil {
		return &kubevirt.MigrationState{}
	}
	return m.Status.MigrationState
}

// native tells whether libvirt of the source sends the guest by itself.
func native(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return StateOf(m).Transport == kubevirt.TransportNative
}

// begun reports whether the source's agent may have had libvirt begin. It has
// written Running before.
func begun(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == kubevirt.MigrationRunning || m.Status.Phase == kubevirt.MigrationSucceeded ||
		StateOf(m).StartTimestamp != nil
}

// taken reports whether the target's agent may have something for the migration.
func taken(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return begun(m) || StateOf(m).TargetNodeAddress != "" || StateOf(m).TargetState != "" ||
		m.Status.Phase == kubevirt.MigrationPreparingTarget || m.Status.Phase == kubevirt.MigrationTargetReady ||
		!m.Reached(kubevirt.MigrationPreparingTarget).IsZero()
}

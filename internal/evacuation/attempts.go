package evacuation

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/oneline"
)

// ReasonStuck is the reason of a VM of which maxAttempts migrations in a row have failed.
const ReasonStuck = "Stuck"

// stuck reports whether as many migrations in a row have failed as may.
func (e Evacuee) stuck() bool {
	failed, _ := e.failures()
	return e.MaxAttempts > 0 && failed >= e.MaxAttempts
}

func (e Evacuee) whyStuck() string {
	failed, last := e.failures()
	return fmt.Sprintf("%d migrations in a row have failed%s", failed, failureSuffix(last))
}

// Backoff after n failures: backoffBase × 2ⁿ⁻¹, at most backoffMax.
const (
	backoffBase = 20 * time.Second
	backoffMax  = 320 * time.Second
)

func backoffAfter(failures int) time.Duration {
	wait := backoffBase
	for range failures - 1 {
		if wait *= 2; wait >= backoffMax {
			return backoffMax
		}
	}
	return wait
}

// backoff returns the remaining wait after the last failure.
func (e Evacuee) backoff() time.Duration {
	failed, last := e.failures()
	if failed == 0 {
		return 0
	}
	// A clock that was set back must not extend the wait.
	return min(ended(last).Add(backoffAfter(failed)).Sub(e.Now), backoffAfter(failed))
}

// failures returns the number of the VM's evacuations that failed since its last
// successful migration, and the last of them.
func (e Evacuee) failures() (failed int, last *kubevirt.VirtualMachineInstanceMigration) {
	for _, m := range e.own() {
		switch {
		case m.Status.Phase == kubevirt.MigrationSucceeded:
			failed = 0
		case m.Status.Phase == kubevirt.MigrationFailed && Evacuates(&m):
			failed, last = failed+1, &m
		}
	}
	return failed, last
}

// failureSuffix returns why a migration failed, as the end of a sentence.
func failureSuffix(m *kubevirt.VirtualMachineInstanceMigration) string {
	if s := m.Status.MigrationState; s != nil && s.FailureReason != "" {
		return "; " + oneline.Cut(s.FailureReason, longMessage)
	}
	return ""
}

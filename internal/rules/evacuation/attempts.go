package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// ReasonStuck is the reason of a VM of which maxAttempts migrations in a row have failed, and
// which stays until somebody acts.
const ReasonStuck = "Stuck"

// markSkew is how much earlier than the report of the mark its first migration may seem to be
// made: times have whole seconds.
const markSkew = 2 * time.Second

// attempts returns the migrations of the present mark that have failed in a row, the oldest
// first. The condition EvictionRequested, which comes and goes with the mark, says since when it
// counts. A migration that somebody has deleted is no attempt, nor is one whose turn did not
// come.
func (e Evacuee) attempts() (failed []kubevirt.VirtualMachineInstanceMigration) {
	reported := e.VMI.Condition(kubevirt.EvictionRequested)
	if reported == nil || reported.Status != kubevirt.ConditionTrue {
		return nil
	}
	for _, m := range e.own() {
		switch since := reported.LastTransitionTime.Add(-markSkew); {
		case m.Status.Phase == kubevirt.MigrationSucceeded:
			failed = nil
		case m.Status.Phase == kubevirt.MigrationFailed && Evacuates(&m) && m.DeletionTimestamp == nil &&
			!m.CreationTimestamp.Time.Before(since) && !noTurn(&m):
			failed = append(failed, m)
		}
	}
	return failed
}

// noTurn reports whether a migration failed because its turn did not come in time.
func noTurn(m *kubevirt.VirtualMachineInstanceMigration) bool {
	s := m.Status.MigrationState
	return s != nil && strings.HasSuffix(s.FailureReason, kubevirt.FailureNoRoom)
}

// stuck reports whether as many migrations in a row have failed as may. A VM whose shutdown is
// held is never stuck: it has little time, and the migration is what it waits for.
func (e Evacuee) stuck() bool {
	return e.MaxAttempts > 0 && !e.Held && len(e.attempts()) >= e.MaxAttempts
}

// endsWhenStuck reports whether a stuck VM is shut down: the policy says so, and it was not only
// the descheduler that wanted it elsewhere.
func (e Evacuee) endsWhenStuck() bool {
	return e.ShutdownAfter && !ExplanationOf(e.VMI).Descheduler
}

func (e Evacuee) whyStuck() string {
	failed := e.attempts()
	return fmt.Sprintf("%d migrations in a row have failed%s", len(failed), failureSuffix(&failed[len(failed)-1]))
}

// keptMigrations is the number of finished migrations of a VM that are kept.
const keptMigrations = 5

// Outdated returns the finished migrations of the VM to delete, the oldest first. It keeps the
// youngest, and the attempts that count.
func (e Evacuee) Outdated() []kubevirt.VirtualMachineInstanceMigration {
	var done []kubevirt.VirtualMachineInstanceMigration
	for i := range e.Migrations {
		if e.Migrations[i].Final() {
			done = append(done, e.Migrations[i])
		}
	}
	sortByAge(done)
	if len(done) <= keptMigrations {
		return nil
	}
	counted := e.attempts()
	counted = counted[max(0, len(counted)-e.MaxAttempts):]
	return slices.DeleteFunc(done[:len(done)-keptMigrations], func(m kubevirt.VirtualMachineInstanceMigration) bool {
		return slices.ContainsFunc(counted, func(c kubevirt.VirtualMachineInstanceMigration) bool { return c.UID == m.UID })
	})
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

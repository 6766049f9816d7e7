package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// Protection holds the facts about a launcher pod and the disruption budgets that select
// it. The zero value protects from nothing.
type Protection struct {
	// Found means that the VMI's own budget exists, by a read from the API server, and
	// selects the pod.
	Found bool
	// Observed means that the budget's status is of its current generation. Expected,
	// Healthy and Desired are numbers of pods, Allowed is the number of disruptions that
	// it allows.
	Observed                            bool
	Expected, Healthy, Desired, Allowed int32
	// EvictsUnhealthy means that the budget never protects pods that are not ready.
	EvictsUnhealthy bool
	// Others means that another budget selects the pod, too.
	Others bool
	// Pending and Ready are the pod's.
	Pending, Ready bool
}

// gap returns why the API server would not refuse the eviction because of the VM's
// budget, or "".
func (p *Protection) gap() string {
	switch {
	case !p.Found:
		return "NoBudget"
	case !p.Observed || p.Expected <= 0:
		return "BudgetNotObserved"
	case p.Allowed > 0:
		return "BudgetAllows"
	case p.Others: // answered 500
		return "SeveralBudgets"
	case p.Pending: // no budget is asked
		return "PodPending"
	case !p.Ready && (p.EvictsUnhealthy || p.Desired > 0 && p.Healthy >= p.Desired):
		return "PodNotReady"
	default:
		return ""
	}
}

// LeftToBudget reports whether the answer allows the eviction because the VM's disruption
// budget refuses it. WithBudget checks whether the budget does.
func (a *Admission) LeftToBudget() bool { return a.Reason == budgetAnswers }

// StopsVM reports whether the answer lets an eviction stop the guest of a VM, as far as is known. An
// answer by outdated settings may do that wrongly.
func (a *Admission) StopsVM() bool {
	return a.Verdict == Allow && a.Strategy != NotApplicable && !a.LeftToBudget()
}

// WithBudget returns the answer to an eviction that is left to the VM's budget. If the
// budget would not refuse it, the webhook does, with the message of the first answer.
func (a *Admission) WithBudget(vmi *kubevirt.VirtualMachineInstance, p *Protection) Admission {
	if gap := p.gap(); gap != "" {
		return Admission{Verdict: Refuse, Reason: gap, Message: evictionTriggered(vmi), Strategy: a.Strategy}
	}
	return *a
}

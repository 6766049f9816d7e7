package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Verdict is the meaning of an answer for the pod.
type Verdict string

// Verdicts. Accepted: it terminates. Moving: its VM is to be migrated. Blocked: refused
// for now. Failed: refused until a user changes something. Retry: the request failed for
// a reason that does not concern the pod.
const (
	Accepted Verdict = "Accepted"
	Moving   Verdict = "Moving"
	Blocked  Verdict = "Blocked"
	Failed   Verdict = "Failed"
	Retry    Verdict = "Retry"
)

// Answer is a verdict with its reason.
type Answer struct {
	Verdict Verdict
	Reason  string
}

// Response is an error response to an eviction request.
type Response struct {
	// Code is the HTTP status, 0 where there was none.
	Code int
	// Text is the error message; Causes are the types of metav1.Status.Details.Causes.
	Text   string
	Causes []string
}

// Budget is a PodDisruptionBudget that selects the pod.
type Budget struct {
	// Name is namespace/name; Owner is kind and name of its owner, or empty.
	Name, Owner string
	// Observed: its status is of its current generation. Desired is the number of healthy
	// pods that it keeps, Expected that of all its pods, Allowed that of the disruptions
	// that it allows now.
	Observed          bool
	Desired, Expected int32
	Allowed           int32
	// OfVM: it protects a VM, and is deleted or free again once that was migrated.
	OfVM bool
}

// blocksForever tells whether no pod of the budget can be evicted until its numbers or
// the number of its pods are changed.
func (b *Budget) blocksForever() bool {
	return !b.OfVM && b.Observed && b.Expected > 0 && b.Desired >= b.Expected && b.Allowed <= 0
}

func (b *Budget) String() string {
	if b.Owner == "" {
		return "PodDisruptionBudget " + b.Name
	}
	return "PodDisruptionBudget " + b.Name + " of " + b.Owner
}

// VM is the observed state of the VM in a launcher pod.
type VM struct {
	// Name is namespace/name of its VirtualMachineInstance.
	Name string
	// Marked: it is to be evacuated from the node.
	Marked bool
	// Stuck is why it is not migrated though it is to be evacuated, or empty.
	// NotMigratable is the message of its condition LiveMigratable where that is False.
	Stuck, NotMigratable string
	// Progress is the progress of its migration as text, Percent as a number, -1 where
	// it is unknown.
	Progress string
	Percent  int
}

// Parts of the messages and causes of the eviction webhook (vmgrace's and KubeVirt's)
// and of the API server.
const (
	textEvacuation     = "Eviction triggered evacuation"
	textNotMigratable  = "not live-migratable"
	textHotplug        = "hotplug pod"
	textSeveralBudgets = "more than one PodDisruptionBudget"
	textBudget         = "disruption budget"
	causeBudget        = "DisruptionBudget"
	causeTerminating   = "NamespaceTerminating"
)

// Classify interprets an error response to an eviction request, given the budgets that
// select the pod and its VM, which is nil if the pod has none.
func Classify(p *Pod, r *Response, budgets []Budget, vm *VM) Answer {
	switch {
	case r.Code == notFound:
		return Answer{Accepted, "it is gone already"}
	case strings.Contains(r.Text, textNotMigratable):
		return Answer{Failed, notMigratable(r.Text, vm)}
	case strings.Contains(r.Text, textSeveralBudgets):
		return Answer{Failed, "several PodDisruptionBudgets select it, so each eviction fails: " + list(budgets)}
	case r.Code == tooManyRequests:
		return classify429(p, r, budgets, vm)
	case r.Code == forbidden && slices.Contains(r.Causes, causeTerminating):
		return Answer{Retry, "its namespace is terminating"}
	case slices.Contains([]int{badRequest, unauthorized, forbidden, notAllowed, unprocessable}, r.Code):
		return Answer{Failed, r.Text}
	default:
		return Answer{Retry, r.Text}
	}
}

// HTTP statuses. net/http would bring I/O into this package.
const (
	badRequest      = 400
	unauthorized    = 401
	forbidden       = 403
	notFound        = 404
	notAllowed      = 405
	unprocessable   = 422
	tooManyRequests = 429
)

func classify429(p *Pod, r *Response, budgets []Budget, vm *VM) Answer {
	switch {
	case strings.Contains(r.Text, textEvacuation):
		return Answer{Moving, "its VM is to be moved"}
	case strings.Contains(r.Text, textHotplug):
		return Answer{Blocked, "it holds a volume of a VM and goes with it"}
	case slices.Contains(r.Causes, causeBudget), strings.Contains(r.Text, textBudget):
		return byBudget(p, r, budgets, vm)
	default: // the API server is overloaded, or the webhook could not read an object
		return Answer{Retry, r.Text}
	}
}

func byBudget(p *Pod, r *Response, budgets []Budget, vm *VM) Answer {
	for i := range budgets {
		if b := &budgets[i]; b.blocksForever() {
			return Answer{Failed, fmt.Sprintf("%v keeps %d of %d pods and never allows an eviction; change it, or give %s more replicas",
				b, b.Desired, b.Expected, cmp.Or(p.Owner, "its application"))}
		}
	}
	switch {
	case vm != nil && vm.Marked && vm.Stuck != "":
		return Answer{Failed, "VMI " + vm.Name + " cannot be moved: " + vm.Stuck}
	case vm != nil && vm.Marked:
		return Answer{Moving, "its VM is to be moved"}
	case len(budgets) == 0:
		return Answer{Blocked, r.Text}
	default:
		return Answer{Blocked, "waits for " + list(budgets)}
	}
}

func notMigratable(text string, vm *VM) string {
	if vm == nil || vm.NotMigratable == "" || strings.Contains(text, vm.NotMigratable) {
		return text
	}
	return text + ": " + vm.NotMigratable
}

func list(budgets []Budget) string {
	if len(budgets) == 0 {
		return "not known"
	}
	text := budgets[0].String()
	for i := range budgets[1:] {
		text += ", " + budgets[i+1].String()
	}
	return text
}

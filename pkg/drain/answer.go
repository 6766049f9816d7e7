package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Verdict is what an answer means for the pod.
type Verdict string

// Verdicts. Accepted: it terminates. Moving: its VM is on the way to another
// node. Blocked: not now. Failed: never, without somebody's help. Retry: the
// answer says nothing about the pod.
const (
	Accepted Verdict = "Accepted"
	Moving   Verdict = "Moving"
	Blocked  Verdict = "Blocked"
	Failed   Verdict = "Failed"
	Retry    Verdict = "Retry"
)

// Answer is a verdict, and why.
type Answer struct {
	Verdict Verdict
	Reason  string
}

// Reply is the error of an eviction that the API server did not accept.
type Reply struct {
	// Code is the HTTP status, 0 where there was none.
	Code int
	// Text is the error; Causes are the details of it.
	Text   string
	Causes []string
}

// Budget is a PodDisruptionBudget that selects the pod.
type Budget struct {
	// Name is namespace/name; Owner is how people name its owner, or empty.
	Name, Owner string
	// Observed: its controller has seen it as it is. Desired and Expected are the
	// numbers of healthy pods that it keeps and of all its pods.
	Observed          bool
	Desired, Expected int32
	Allowed           int32
	// OfVM: it is the one that protects a VM, and goes when that has moved.
	OfVM bool
}

// never tells whether no pod of the budget can ever be evicted as things are.
func (b *Budget) never() bool {
	return !b.OfVM && b.Observed && b.Expected > 0 && b.Desired >= b.Expected && b.Allowed <= 0
}

func (b *Budget) String() string {
	if b.Owner == "" {
		return "PodDisruptionBudget " + b.Name
	}
	return "PodDisruptionBudget " + b.Name + " of " + b.Owner
}

// VM is what is known of the VM in a launcher pod.
type VM struct {
	// Name is namespace/name of its VirtualMachineInstance.
	Name string
	// Marked: it is to leave the node.
	Marked bool
	// Stuck is why it has to leave and will not be moved, empty where it will be.
	// NotMigratable is what its condition LiveMigratable says against it.
	Stuck, NotMigratable string
	// Progress is how far its migration is, for people; Percent is -1 where unknown.
	Progress string
	Percent  int
}

// The words of the eviction webhook, vmgrace's and KubeVirt's, and of the API server.
const (
	saysEvacuation   = "Eviction triggered evacuation"
	saysNotMigrated  = "not live-migratable"
	saysHotplug      = "hotplug pod"
	saysSeveral      = "more than one PodDisruptionBudget"
	saysBudget       = "disruption budget"
	causeBudget      = "DisruptionBudget"
	causeTerminating = "NamespaceTerminating"
)

// Classify says what a reply means for a pod, given the budgets that select it
// and its VM, which is nil if it has none.
func Classify(p *Pod, r *Reply, budgets []Budget, vm *VM) Answer {
	switch {
	case r.Code == notFound:
		return Answer{Accepted, "it is gone already"}
	case strings.Contains(r.Text, saysNotMigrated):
		return Answer{Failed, notMigrated(r.Text, vm)}
	case strings.Contains(r.Text, saysSeveral):
		return Answer{Failed, "several PodDisruptionBudgets select it, which no eviction passes: " + list(budgets)}
	case r.Code == tooManyRequests:
		return notNow(p, r, budgets, vm)
	case r.Code == forbidden && slices.Contains(r.Causes, causeTerminating):
		return Answer{Retry, "its namespace is terminating"}
	case slices.Contains([]int{badRequest, unauthorized, forbidden, notAllowed, unprocessable}, r.Code):
		return Answer{Failed, r.Text}
	default:
		return Answer{Retry, r.Text}
	}
}

// The HTTP statuses that differ.
const (
	badRequest      = 400
	unauthorized    = 401
	forbidden       = 403
	notFound        = 404
	notAllowed      = 405
	unprocessable   = 422
	tooManyRequests = 429
)

func notNow(p *Pod, r *Reply, budgets []Budget, vm *VM) Answer {
	switch {
	case strings.Contains(r.Text, saysEvacuation):
		return Answer{Moving, "its VM is to be moved"}
	case strings.Contains(r.Text, saysHotplug):
		return Answer{Blocked, "it holds a volume of a VM and goes with it"}
	case slices.Contains(r.Causes, causeBudget), strings.Contains(r.Text, saysBudget):
		return byBudget(p, r, budgets, vm)
	default: // the server has too much to do, or the webhook could not tell
		return Answer{Retry, r.Text}
	}
}

func byBudget(p *Pod, r *Reply, budgets []Budget, vm *VM) Answer {
	for i := range budgets {
		if b := &budgets[i]; b.never() {
			return Answer{Failed, fmt.Sprintf("%v keeps %d of %d pods and can never let one go; change it, or give %s more replicas",
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

func notMigrated(text string, vm *VM) string {
	if vm == nil || vm.NotMigratable == "" || strings.Contains(text, vm.NotMigratable) {
		return text
	}
	return text + ": " + vm.NotMigratable
}

func list(budgets []Budget) string {
	if len(budgets) == 0 {
		return "unknown ones"
	}
	text := budgets[0].String()
	for i := range budgets[1:] {
		text += ", " + budgets[i+1].String()
	}
	return text
}

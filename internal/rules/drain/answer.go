package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verdict is the meaning of an answer for the pod.
type Verdict string

// Verdicts. Accepted means that the pod terminates, Moving that its VM is to be migrated.
// Blocked means refused for now, Failed refused until a user changes something. Retry
// means that the request failed for a reason that does not concern the pod.
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
	// ByBudget means that only disruption budgets refuse it: a deletion would succeed.
	ByBudget bool
}

// Response is an error response to an eviction request.
type Response struct {
	// Code is the HTTP status, 0 if there was none.
	Code int
	// Text is the error message; Causes are the types of metav1.Status.Details.Causes.
	Text   string
	Causes []string
}

// Budget is a PodDisruptionBudget that selects the pod.
type Budget struct {
	// Name is namespace/name; Owner is kind and name of its owner, or empty.
	Name, Owner string
	// Observed means that its status is of its current generation. Desired is the number
	// of healthy pods that it keeps, Expected the number of all its pods, Allowed the
	// number of disruptions that it allows now.
	Observed          bool
	Desired, Expected int32
	Allowed           int32
	// SyncFailed is why Kubernetes cannot compute the budget, or empty. SyncFailedFor is
	// how long it cannot.
	SyncFailed    string
	SyncFailedFor time.Duration
	// OfVM means that it protects a VM. It is deleted, or allows disruptions again, once
	// that was migrated.
	OfVM bool
}

// maxSyncFailed is the time after which a budget that was computed before counts as one
// that cannot be computed. Until then an API server may be restarting.
const maxSyncFailed = time.Minute

// blocksForever returns why no pod of the budget can be evicted until its numbers or its
// pods are changed, or "".
func (b *Budget) blocksForever(p *Pod) string {
	switch {
	case b.OfVM || b.Allowed > 0:
		return ""
	case b.SyncFailed != "" && (b.Expected == 0 || b.SyncFailedFor >= maxSyncFailed):
		return fmt.Sprintf("%v can never allow an eviction (SyncFailed): %s; change it: minAvailable as a number needs no scale", b, b.SyncFailed)
	case b.Observed && b.Expected > 0 && b.Desired >= b.Expected:
		return fmt.Sprintf("%v keeps %d of %d pods and never allows an eviction; change it, or give %s more replicas",
			b, b.Desired, b.Expected, cmp.Or(p.Owner, "its application"))
	default:
		return ""
	}
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
	// Marked means that it is to be evacuated from the node, Moved that it has left the pod.
	Marked, Moved bool
	// Stuck is why it is not migrated though it is to be evacuated, or empty.
	// NotMigratable is the message of its condition LiveMigratable if that is False.
	Stuck, NotMigratable string
	// Judged means that it is known whether it is migratable.
	Judged bool
	// Progress is the progress of its migration as text, Percent as a number, -1 if
	// unknown.
	Progress string
	Percent  int
}

// Parts of the messages and causes of the eviction webhook (vmgrace's and KubeVirt's)
// and of the API server.
const (
	textEvacuation     = "Eviction triggered evacuation"
	textInProgress     = "Evacuation in progress"
	textMoved          = "has moved to node"
	textNotMigratable  = "not live-migratable"
	textNotJudged      = "it is not known yet whether"
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
		return Answer{Verdict: Accepted, Reason: "it is gone already"}
	case vm != nil && vm.Moved && (r.Code == tooManyRequests || strings.Contains(r.Text, textSeveralBudgets)), strings.Contains(r.Text, textMoved):
		return Answer{Verdict: Moving, Reason: "its VM has moved: it ends by itself"}
	case strings.Contains(r.Text, textNotMigratable):
		return Answer{Verdict: Failed, Reason: notMigratable(r.Text, vm)}
	case strings.Contains(r.Text, textSeveralBudgets):
		return bySeveralBudgets(budgets, vm)
	case r.Code == tooManyRequests:
		return classify429(p, r, budgets, vm)
	case r.Code == forbidden && slices.Contains(r.Causes, causeTerminating):
		return Answer{Verdict: Retry, Reason: "its namespace is terminating"}
	case slices.Contains([]int{badRequest, unauthorized, forbidden, notAllowed, unprocessable}, r.Code):
		return Answer{Verdict: Failed, Reason: r.Text}
	default:
		return Answer{Verdict: Retry, Reason: r.Text}
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
	case strings.Contains(r.Text, textEvacuation), strings.Contains(r.Text, textInProgress):
		return moving(vm)
	case strings.Contains(r.Text, textNotJudged):
		return Answer{Verdict: Blocked, Reason: "its VM has just started: it is not known yet whether it can be moved"}
	case strings.Contains(r.Text, textHotplug):
		return Answer{Verdict: Blocked, Reason: "it holds a volume of a VM and goes with it"}
	case slices.Contains(r.Causes, causeBudget), strings.Contains(r.Text, textBudget):
		return byBudget(p, r, budgets, vm)
	default: // the API server is overloaded, or the webhook could not read an object
		return Answer{Verdict: Retry, Reason: r.Text}
	}
}

// moving returns the answer for a pod whose VM is to be moved.
func moving(vm *VM) Answer {
	if vm != nil && vm.Marked && vm.Stuck != "" {
		return Answer{Verdict: Failed, Reason: "VMI " + vm.Name + " cannot be moved: " + vm.Stuck}
	}
	return Answer{Verdict: Moving, Reason: "its VM is to be moved"}
}

func byBudget(p *Pod, r *Response, budgets []Budget, vm *VM) Answer {
	if vm != nil && vm.Marked { // it goes once the VM has moved, whatever its budgets allow
		return moving(vm)
	}
	for i := range budgets {
		if why := budgets[i].blocksForever(p); why != "" {
			return Answer{Verdict: Failed, Reason: why, ByBudget: true}
		}
	}
	if len(budgets) == 0 {
		return Answer{Verdict: Blocked, Reason: r.Text, ByBudget: true}
	}
	return Answer{Verdict: Blocked, Reason: "waits for " + list(budgets), ByBudget: true}
}

// bySeveralBudgets returns the answer if several budgets select the pod: the API server
// fails each of its evictions. A VM is moved nevertheless, and its own budget goes then.
func bySeveralBudgets(budgets []Budget, vm *VM) Answer {
	switch {
	case vm != nil && vm.Marked:
		return moving(vm)
	case slices.ContainsFunc(budgets, func(b Budget) bool { return b.OfVM }):
		return Answer{Verdict: Blocked, Reason: "its VM is not to be moved yet, and several PodDisruptionBudgets select it: " + list(budgets)}
	default:
		return Answer{Verdict: Failed, Reason: "several PodDisruptionBudgets select it, so each eviction fails: " + list(budgets), ByBudget: true}
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

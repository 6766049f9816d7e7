package evacuation

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Verdict is the decision about an eviction.
type Verdict string

// Verdicts. With Allow the webhook allows the eviction, and disruption budgets decide.
// Mark and Refuse are answered 429; with Mark the VM is marked first.
const (
	Allow  Verdict = "allowed"
	Mark   Verdict = "marked"
	Refuse Verdict = "refused"
)

// budgetAnswers is the reason of an answer that the VM's disruption budget gives.
const budgetAnswers = "BudgetAnswers"

// NotApplicable is the strategy in an Admission that does not depend on a strategy.
const NotApplicable kubevirt.EvictionStrategy = "NotApplicable"

// Admission is the answer to an eviction.
type Admission struct {
	Verdict Verdict
	// Reason is for logs; Message is the answer to the client.
	Reason, Message string
	// Strategy is the one that was applied.
	Strategy kubevirt.EvictionStrategy
	// Unknown is an unknown evictionStrategy that was handled as None. An Event is to
	// report it.
	Unknown string
}

// Pod has the properties of a pod that is to be evicted.
type Pod struct {
	Launcher bool // by its label
	Finished bool // Succeeded or Failed
	Unbegun  bool // no container of it has been started
	Deleting bool
	// Held means that the node agent delays the shutdown, or will, until the VM was
	// migrated.
	Held bool
	// Settling means that LiveMigratable may not have been judged yet, see Settling.
	Settling bool
	// Descheduler means that the descheduler asks for its eviction.
	Descheduler bool
	Name        string
	Node        string
	// VMI and VMIUID are name and UID of its VMI, from the pod's metadata. Unowned means that this
	// project has linked the pod, and that no owner of it has this UID.
	VMI, VMIUID string
	Unowned     bool
}

// OfVM reports whether the answer depends on a VMI.
func (p *Pod) OfVM() bool { return p.Launcher && !p.Finished && p.VMI != "" }

// Admit decides about the eviction of a launcher pod. vmi is nil if it does not exist
// in the API server; fallback is the cluster's strategy.
func Admit(p *Pod, vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) Admission {
	if reason := noVMReason(p, vmi); reason != "" {
		return Admission{Verdict: Allow, Reason: reason, Strategy: NotApplicable}
	}
	a := byStrategy(p, vmi, fallback)
	if string(vmi.UID) != p.VMIUID {
		if a.Strategy == kubevirt.StrategyNone || !p.mayBe(vmi) {
			return Admission{Verdict: Allow, Reason: "OrphanOfFormerVMI", Strategy: NotApplicable}
		}
		a.Verdict, a.Reason, a.Message = Refuse, "NotLinked", notLinked(vmi, p)
		return a
	}
	if p.Settling && migrates(a.Strategy) && !judged(vmi) {
		a.Verdict, a.Reason, a.Message = Refuse, "NotJudgedYet", notJudged(vmi)
	}
	return a.of(p, vmi)
}

// of returns the admission, or what counts before it of the pod's node and deletion.
func (a Admission) of(p *Pod, vmi *kubevirt.VirtualMachineInstance) Admission {
	switch {
	case movedAway(p, vmi) && !p.Deleting: // the API server would answer 500 where two budgets select it
		a.Verdict, a.Reason, a.Message = Refuse, "Moved", hasMoved(vmi)
	case vmi.Node() == "" && p.Node != "" && !p.Deleting && a.Verdict != Allow:
		a.Verdict, a.Reason, a.Message = Refuse, "NoNode", noNode(vmi)
	case vmi.Node() == "" || p.Node != vmi.Node():
		a.Verdict, a.Reason, a.Message = Allow, "NotOnTheVMsNode", ""
	case p.Deleting && p.Held && vmi.Marked():
		a.Verdict, a.Reason, a.Message = Refuse, "ShutdownHeld", evictionTriggered(vmi)
	case p.Deleting && p.Held:
		a.Verdict, a.Reason, a.Message = Mark, "ShutdownHeld", evictionTriggered(vmi)
	case p.Deleting:
		a.Verdict, a.Reason, a.Message = Allow, "PodDeleting", ""
	}
	return a
}

// movedAway reports whether the pod is the one that the guest of the VM has left.
func movedAway(p *Pod, vmi *kubevirt.VirtualMachineInstance) bool {
	s := vmi.Status.MigrationState
	return s != nil && p.Name != "" && s.SourcePod == p.Name && s.SourceNode == p.Node && p.Node != vmi.Node()
}

// noVMReason returns why the eviction of the pod stops no VM, or "". Such a pod never
// blocks a drain.
func noVMReason(p *Pod, vmi *kubevirt.VirtualMachineInstance) string {
	switch {
	case p.Finished:
		return "PodFinished"
	case !p.Launcher:
		return "NoLauncher"
	case p.Unbegun:
		return "NeverStarted"
	case p.VMI == "":
		return "OrphanWithoutName"
	case vmi == nil:
		return "OrphanOfGoneVMI"
	case vmi.DeletionTimestamp != nil:
		return "VMIDeleting"
	case vmi.Final():
		return "VMIFinished"
	default:
		return ""
	}
}

// mayBe reports whether a pod with another UID than the VMI's may be its launcher all the same: one that
// was restored from a backup, or is not linked yet.
func (p *Pod) mayBe(vmi *kubevirt.VirtualMachineInstance) bool {
	had := vmi.Status.Launcher != nil && vmi.Status.Launcher.PodUID != ""
	return p.Unowned && !p.Deleting && !had && (vmi.Node() == "" || vmi.Node() == p.Node)
}

// cell is one entry of the table of verdicts.
type cell struct {
	verdict Verdict
	reason  string
	message func(*kubevirt.VirtualMachineInstance) string
}

func allowed(reason string) cell { return cell{Allow, reason, noMessage} }

// verdicts by strategy, migratable and marked.
var verdicts = map[kubevirt.EvictionStrategy]map[string][2]cell{
	//                  not marked, then marked
	kubevirt.StrategyNone: {
		"migratable":     {allowed("StrategyNone"), allowed("StrategyNone")},
		"not migratable": {allowed("StrategyNone"), allowed("StrategyNone")},
	},
	kubevirt.StrategyLiveMigrate: {
		"migratable":     {{Mark, "ToBeMigrated", evictionTriggered}, allowed(budgetAnswers)},
		"not migratable": {{Refuse, "NotMigratable", notMigratable}, {Refuse, "NotMigratable", notMigratable}},
	},
	kubevirt.StrategyLiveMigrateIfPossible: {
		"migratable":     {{Mark, "ToBeMigrated", evictionTriggered}, allowed(budgetAnswers)},
		"not migratable": {allowed("NotMigratable"), allowed("NotMigratable")},
	},
	kubevirt.StrategyExternal: {
		"migratable":     {{Mark, "ToBeMovedByOthers", evictionTriggered}, allowed(budgetAnswers)},
		"not migratable": {{Mark, "ToBeMovedByOthers", evictionTriggered}, allowed(budgetAnswers)},
	},
}

// byStrategy reads the table. For others than the descheduler its marks count as none: theirs makes them its own.
func byStrategy(p *Pod, vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) Admission {
	strategy, unknown := StrategyOf(vmi, fallback)
	row, column := "not migratable", 0
	if vmi.Migratable() {
		row = "migratable"
	}
	if vmi.Marked() && (p.Descheduler || !ExplanationOf(vmi).Descheduler) {
		column = 1
	}
	c := verdicts[strategy][row][column]
	return Admission{Verdict: c.verdict, Reason: c.reason, Message: c.message(vmi), Strategy: strategy, Unknown: unknown}
}

// StrategyOf returns the effective strategy: the VMI's, else the cluster's, else None. It
// treats an unknown value as None, and returns it as unknown.
func StrategyOf(vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) (s kubevirt.EvictionStrategy, unknown string) {
	s = fallback
	if vmi.Spec.EvictionStrategy != nil && *vmi.Spec.EvictionStrategy != "" {
		s = *vmi.Spec.EvictionStrategy
	}
	if s == "" {
		return kubevirt.StrategyNone, ""
	}
	if !knownStrategy(s) {
		return kubevirt.StrategyNone, string(s)
	}
	return s, ""
}

func noMessage(*kubevirt.VirtualMachineInstance) string { return "" }

// evictionTriggered returns the text that the descheduler matches.
func evictionTriggered(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf(`Eviction triggered evacuation of VMI "%s/%s"`, vmi.Namespace, vmi.Name)
}

func hasMoved(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf("VMI %s/%s has moved to node %s: this pod ends by itself", vmi.Namespace, vmi.Name, vmi.Node())
}

func notMigratable(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable", vmi.Name)
}

func notLinked(vmi *kubevirt.VirtualMachineInstance, p *Pod) string {
	return fmt.Sprintf("VMI %s has an eviction strategy, and this pod is not linked to it: its label %s is %.63q, and the VMI has the UID %s; correct the label, or remove it: then cluster-controller writes it",
		vmi.Name, kubevirt.CreatedByLabel, p.VMIUID, vmi.UID)
}

func noNode(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf("VMI %s has an eviction strategy and no node, so that nobody can move it: label it %s=NODE", vmi.Name, kubevirt.NodeNameLabel)
}

// judged reports whether LiveMigratable says if the VM is migratable.
func judged(vmi *kubevirt.VirtualMachineInstance) bool {
	return vmi.ConditionIs(kubevirt.LiveMigratable, kubevirt.ConditionTrue) || vmi.ConditionIs(kubevirt.LiveMigratable, kubevirt.ConditionFalse)
}

func notJudged(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf("kubevirt failed getting the vmi: it is not known yet whether %s is live-migratable", vmi.Name)
}

// How long to wait for the judgement of a VM: after its launcher is ready, and after the
// launcher's creation while it is not ready.
const (
	judgedWithin = time.Minute
	readyWithin  = 5 * time.Minute
)

// Settling reports whether it may be too early for LiveMigratable. ready is when the
// launcher pod became ready, nil if it is not.
func Settling(now, created time.Time, ready *time.Time) bool {
	if ready == nil {
		return now.Sub(created) < readyWithin
	}
	return now.Sub(*ready) < judgedWithin
}

// Unreadable returns the answer if an object cannot be read. what is "vmi", "pod" or
// "settings".
func Unreadable(what string, err error) Admission {
	return Admission{
		Verdict: Refuse, Reason: "Unreadable", Strategy: NotApplicable,
		Message: fmt.Sprintf("kubevirt failed getting the %s: %v", what, err),
	}
}

// MarkFailed changes the answer a, because the VM could not be marked.
func MarkFailed(a Admission, err error) Admission {
	a.Verdict, a.Reason = Refuse, "MarkFailed"
	a.Message = fmt.Sprintf("kubevirt failed marking the vmi for eviction: %v", err)
	return a
}

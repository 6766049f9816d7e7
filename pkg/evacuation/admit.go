package evacuation

import (
	"fmt"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Verdict is what becomes of an eviction.
type Verdict string

// The verdicts. Allow leaves the rest to the disruption budgets. Mark and
// Refuse are answered 429; Mark marks the VM first.
const (
	Allow  Verdict = "allowed"
	Mark   Verdict = "marked"
	Refuse Verdict = "refused"
)

// NotApplicable is the strategy of a pod whose VM does not count.
const NotApplicable kubevirt.EvictionStrategy = "NotApplicable"

// Admission is the answer to an eviction.
type Admission struct {
	Verdict Verdict
	// Reason is one word for logs; Message is for the one who evicts.
	Reason, Message string
	// Strategy is the one that counted.
	Strategy kubevirt.EvictionStrategy
	// Unknown is the word that was stated as a strategy and is none: it counted
	// as None, which somebody should hear of.
	Unknown string
}

// Pod is what counts of a VM's pod that is to be evicted.
type Pod struct {
	Launcher bool // by its label
	Finished bool // Succeeded or Failed
	Deleting bool
	// Held: its node's agent holds the shutdown, or will, until the VM was moved.
	Held bool
	Node string
	// VMI is the name of its VMI, VMIUID that VMI's UID, as the pod says.
	VMI, VMIUID string
}

// OfVM reports whether it takes the VMI to answer for the pod.
func (p *Pod) OfVM() bool { return p.Launcher && !p.Finished && p.VMI != "" }

// Admit answers the eviction of a launcher pod. vmi is nil if the API server
// says that it does not exist; fallback is the cluster's strategy.
func Admit(p *Pod, vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) Admission {
	if reason := notAVMs(p, vmi); reason != "" {
		return Admission{Verdict: Allow, Reason: reason, Strategy: NotApplicable}
	}
	a := byStrategy(vmi, fallback)
	switch {
	case vmi.Node() == "" || p.Node != vmi.Node():
		a.Verdict, a.Reason, a.Message = Allow, "NotOnTheVMsNode", ""
	case p.Deleting && p.Held && vmi.Marked():
		a.Verdict, a.Reason, a.Message = Refuse, "ShutdownHeld", triggered(vmi)
	case p.Deleting && p.Held:
		a.Verdict, a.Reason, a.Message = Mark, "ShutdownHeld", triggered(vmi)
	case p.Deleting:
		a.Verdict, a.Reason, a.Message = Allow, "PodDeleting", ""
	}
	return a
}

// notAVMs is why no VM is stopped with this pod; empty if one is. An orphan
// never blocks a drain.
func notAVMs(p *Pod, vmi *kubevirt.VirtualMachineInstance) string {
	switch {
	case p.Finished:
		return "PodFinished"
	case !p.Launcher:
		return "NoLauncher"
	case p.VMI == "":
		return "OrphanWithoutName"
	case vmi == nil:
		return "OrphanOfGoneVMI"
	case vmi.DeletionTimestamp != nil:
		return "VMIDeleting"
	case string(vmi.UID) != p.VMIUID:
		return "OrphanOfFormerVMI"
	case vmi.Final():
		return "VMIFinished"
	default:
		return ""
	}
}

// A cell of the table.
type cell struct {
	verdict Verdict
	reason  string
	message func(*kubevirt.VirtualMachineInstance) string
}

func allowed(reason string) cell { return cell{Allow, reason, nothing} }

// verdicts is the table: by strategy, then migratable, then marked.
var verdicts = map[kubevirt.EvictionStrategy]map[string][2]cell{
	//                  not marked, then marked
	kubevirt.StrategyNone: {
		"migratable":     {allowed("StrategyNone"), allowed("StrategyNone")},
		"not migratable": {allowed("StrategyNone"), allowed("StrategyNone")},
	},
	kubevirt.StrategyLiveMigrate: {
		"migratable":     {{Mark, "ToBeMigrated", triggered}, allowed("BudgetAnswers")},
		"not migratable": {{Refuse, "NotMigratable", notMigratable}, {Refuse, "NotMigratable", notMigratable}},
	},
	kubevirt.StrategyLiveMigrateIfPossible: {
		"migratable":     {{Mark, "ToBeMigrated", triggered}, allowed("BudgetAnswers")},
		"not migratable": {allowed("NotMigratable"), allowed("NotMigratable")},
	},
	kubevirt.StrategyExternal: {
		"migratable":     {{Mark, "ToBeMovedByOthers", triggered}, allowed("BudgetAnswers")},
		"not migratable": {{Mark, "ToBeMovedByOthers", triggered}, allowed("BudgetAnswers")},
	},
}

func byStrategy(vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) Admission {
	strategy, unknown := StrategyOf(vmi, fallback)
	row, column := "not migratable", 0
	if vmi.Migratable() {
		row = "migratable"
	}
	if vmi.Marked() {
		column = 1
	}
	c := verdicts[strategy][row][column]
	return Admission{Verdict: c.verdict, Reason: c.reason, Message: c.message(vmi), Strategy: strategy, Unknown: unknown}
}

// StrategyOf is the strategy that counts: the VMI's, else the cluster's, else
// None. A word that is no strategy is None, and returned as well.
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

func nothing(*kubevirt.VirtualMachineInstance) string { return "" }

// The descheduler looks for these words.
func triggered(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf(`Eviction triggered evacuation of VMI "%s/%s"`, vmi.Namespace, vmi.Name)
}

func notMigratable(vmi *kubevirt.VirtualMachineInstance) string {
	return fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable", vmi.Name)
}

// Unreadable is the answer while nobody can say what would be stopped: what
// could not be read is "vmi" or "pod".
func Unreadable(what string, err error) Admission {
	return Admission{
		Verdict: Refuse, Reason: "Unreadable", Strategy: NotApplicable,
		Message: fmt.Sprintf("kubevirt failed getting the %s: %v", what, err),
	}
}

// MarkFailed is the answer where the VM could not be marked.
func MarkFailed(a Admission, err error) Admission {
	a.Verdict, a.Reason = Refuse, "MarkFailed"
	a.Message = fmt.Sprintf("kubevirt failed marking the vmi for eviction: %v", err)
	return a
}

package evacuation

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

const here = "node-a"

// given returns a migratable VM that runs here, and its launcher pod.
func given(strategy kubevirt.EvictionStrategy, change ...func(*Pod, *kubevirt.VirtualMachineInstance)) (*Pod, *kubevirt.VirtualMachineInstance) {
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "uid-1"}}
	if strategy != "" {
		vmi.Spec.EvictionStrategy = &strategy
	}
	vmi.Status = kubevirt.VirtualMachineInstanceStatus{
		Phase: kubevirt.VMIRunning, NodeName: here,
		Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}},
	}
	p := &Pod{Launcher: true, Node: here, VMI: "vm", VMIUID: "uid-1"}
	for _, c := range change {
		c(p, vmi)
	}
	return p, vmi
}

func stuck(_ *Pod, v *kubevirt.VirtualMachineInstance)      { v.Status.Conditions = nil }
func onceMarked(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.Status.EvacuationNodeName = here }

// left makes the pod the source of a migration that has moved the VM.
func left(p *Pod, v *kubevirt.VirtualMachineInstance) {
	p.Name, v.Status.NodeName = "virt-launcher-vm", "node-b"
	v.Status.MigrationState = &kubevirt.MigrationState{SourceNode: here, SourcePod: "virt-launcher-vm", TargetNode: "node-b", TargetPod: "target"}
}

func TestAdmitTable(t *testing.T) {
	const (
		evacuation = `Eviction triggered evacuation of VMI "ns/vm"`
		cannot     = "VMI vm is configured with an eviction strategy but is not live-migratable"
	)
	type answer struct {
		verdict Verdict
		message string
	}
	allow, mark, refuse := answer{Allow, ""}, answer{Mark, evacuation}, answer{Refuse, cannot}
	for _, c := range []struct {
		strategy                                         kubevirt.EvictionStrategy
		migratable, migratableMarked, stuck, stuckMarked answer
	}{
		{"", allow, allow, allow, allow},
		{kubevirt.StrategyNone, allow, allow, allow, allow},
		{kubevirt.StrategyLiveMigrate, mark, allow, refuse, refuse},
		{kubevirt.StrategyLiveMigrateIfPossible, mark, allow, allow, allow},
		{kubevirt.StrategyExternal, mark, allow, mark, allow},
		{"Sometimes", allow, allow, allow, allow},
	} {
		for name, cell := range map[string]struct {
			want   answer
			change []func(*Pod, *kubevirt.VirtualMachineInstance)
		}{
			"migratable":             {c.migratable, nil},
			"migratable, marked":     {c.migratableMarked, []func(*Pod, *kubevirt.VirtualMachineInstance){onceMarked}},
			"not migratable":         {c.stuck, []func(*Pod, *kubevirt.VirtualMachineInstance){stuck}},
			"not migratable, marked": {c.stuckMarked, []func(*Pod, *kubevirt.VirtualMachineInstance){stuck, onceMarked}},
		} {
			for _, from := range []string{"VMI", "cluster"} {
				p, vmi := given(c.strategy, cell.change...)
				fallback := kubevirt.StrategyLiveMigrate // the VMI's overrides it
				if from == "cluster" || c.strategy == "" {
					vmi.Spec.EvictionStrategy, fallback = nil, c.strategy
				}
				if a := Admit(p, vmi, fallback); (answer{a.Verdict, a.Message}) != cell.want || a.Reason == "" {
					t.Errorf("%q of the %s, %s: %+v, want %v", c.strategy, from, name, a, cell.want)
				}
			}
		}
	}
}

func TestAdmitBeforeTheTable(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		change func(*Pod, *kubevirt.VirtualMachineInstance)
		want   Verdict
	}{
		"pod finished":            {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.Finished = true }, Allow},
		"no launcher":             {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.Launcher = false }, Allow},
		"launcher of nobody":      {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.VMI = "" }, Allow},
		"VMI being deleted":       {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.DeletionTimestamp = &now }, Allow},
		"another VMI of its name": {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.UID = types.UID("uid-2") }, Allow},
		"restored from a backup":  {func(p *Pod, v *kubevirt.VirtualMachineInstance) { v.UID, p.Unowned = types.UID("uid-2"), true }, Refuse},
		"not linked yet": {func(p *Pod, v *kubevirt.VirtualMachineInstance) {
			p.VMIUID, p.Unowned, v.Status.NodeName = "", true, ""
		}, Refuse},
		"restored, never moves": {func(p *Pod, v *kubevirt.VirtualMachineInstance) {
			v.UID, p.Unowned, v.Spec.EvictionStrategy = types.UID("uid-2"), true, nil
		}, Allow},
		"a stray beside its launcher": {func(p *Pod, v *kubevirt.VirtualMachineInstance) {
			v.UID, p.Unowned, v.Status.Launcher = types.UID("uid-2"), true, &kubevirt.Launcher{Pod: "p", PodUID: "p"}
		}, Allow},
		"never started":           {func(p *Pod, v *kubevirt.VirtualMachineInstance) { p.Unbegun = true; stuck(p, v) }, Allow},
		"runs on no node":         {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.Status.NodeName = "" }, Refuse},
		"VM ended":                {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.Status.Phase = kubevirt.VMISucceeded }, Allow},
		"migration's target":      {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.Node = "node-b" }, Allow},
		"its guest has left":      {left, Refuse},
		"left, being deleted":     {func(p *Pod, v *kubevirt.VirtualMachineInstance) { left(p, v); p.Deleting = true }, Allow},
		"left, ended":             {func(p *Pod, v *kubevirt.VirtualMachineInstance) { left(p, v); p.Finished = true }, Allow},
		"target of a move back":   {func(p *Pod, v *kubevirt.VirtualMachineInstance) { left(p, v); p.Name = "target" }, Allow},
		"its migration failed":    {func(p *Pod, v *kubevirt.VirtualMachineInstance) { left(p, v); v.Status.NodeName = here }, Mark},
		"VM without a node":       {func(p *Pod, v *kubevirt.VirtualMachineInstance) { p.Node, v.Status.NodeName = "", "" }, Allow},
		"pod being deleted":       {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.Deleting = true }, Allow},
		"held, not marked":        {func(p *Pod, _ *kubevirt.VirtualMachineInstance) { p.Deleting, p.Held = true, true }, Mark},
		"held, marked":            {func(p *Pod, v *kubevirt.VirtualMachineInstance) { p.Deleting, p.Held = true, true; onceMarked(p, v) }, Refuse},
		"marked for another node": {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.Status.EvacuationNodeName = "node-b" }, Mark},
		"node in the label alone": {func(_ *Pod, v *kubevirt.VirtualMachineInstance) {
			v.Status.NodeName, v.Labels = "", map[string]string{kubevirt.NodeNameLabel: here}
		}, Mark},
		"migratable is not known": {func(_ *Pod, v *kubevirt.VirtualMachineInstance) { v.Status.Conditions[0].Status = "Unknown" }, Refuse},
		"strategy stated as nothing": {func(_ *Pod, v *kubevirt.VirtualMachineInstance) {
			v.Spec.EvictionStrategy = new(kubevirt.EvictionStrategy)
		}, Allow},
	} {
		p, vmi := given(kubevirt.StrategyLiveMigrate, c.change)
		if a := Admit(p, vmi, ""); a.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", name, a, c.want)
		}
	}
	p, _ := given(kubevirt.StrategyLiveMigrate)
	if a := Admit(p, nil, kubevirt.StrategyLiveMigrate); a.Verdict != Allow {
		t.Errorf("VMI gone: %+v", a)
	}
}

// Given a VM that the descheduler has marked. When somebody else evicts it, then it is marked anew, as theirs; the
// descheduler's next try is left to the budget.
func TestSomebodyElsesEvictionTakesTheDeschedulersMarkOver(t *testing.T) {
	for descheduler, want := range map[bool]Verdict{true: Allow, false: Mark} {
		p, v := given(kubevirt.StrategyLiveMigrate, onceMarked)
		v.Status.Mark = &kubevirt.Mark{NodeName: here, Source: kubevirt.EvictionSourceDescheduler}
		p.Descheduler = descheduler
		if a := Admit(p, v, ""); a.Verdict != want {
			t.Errorf("by the descheduler: %v: %+v", descheduler, a)
		}
	}
}

// In every state only Allow has no message, and only a VM on the pod's node is marked.
func TestEveryAnswerIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.SampledFrom([]string{"", here, "node-b"})
		p, vmi := given(rapid.SampledFrom([]kubevirt.EvictionStrategy{"", "None", "LiveMigrate", "LiveMigrateIfPossible", "External", "x"}).Draw(t, "strategy"))
		p.Node, p.Deleting, p.Held = node.Draw(t, "pod's node"), rapid.Bool().Draw(t, "deleting"), rapid.Bool().Draw(t, "held")
		vmi.Status.NodeName, vmi.Status.EvacuationNodeName = node.Draw(t, "VM's node"), node.Draw(t, "mark")
		if rapid.Bool().Draw(t, "stuck") {
			stuck(p, vmi)
		}
		a := Admit(p, vmi, "")
		if (a.Verdict == Allow) != (a.Message == "") {
			t.Fatalf("%+v", a)
		}
		if a.Verdict == Mark && (vmi.Marked() || vmi.Node() == "" || vmi.Node() != p.Node) {
			t.Fatalf("marks %+v for a pod on %q: %+v", vmi.Status, p.Node, a)
		}
	})
}

func TestHotplugPods(t *testing.T) {
	if !Hotplug("hp-volume-x", "") || !Hotplug("any", "hotplug-disk") || Hotplug("virt-launcher-x", "virt-launcher") {
		t.Error("which pods are hotplug pods")
	}
	for name, c := range map[string]struct {
		change func(*HotplugPod, *kubevirt.VirtualMachineInstance)
		want   Verdict
	}{
		"in use":              {func(*HotplugPod, *kubevirt.VirtualMachineInstance) {}, Refuse},
		"whatever strategy":   {func(_ *HotplugPod, v *kubevirt.VirtualMachineInstance) { v.Spec.EvictionStrategy = nil }, Refuse},
		"finished":            {func(p *HotplugPod, _ *kubevirt.VirtualMachineInstance) { p.Finished = true }, Allow},
		"owner gone":          {func(p *HotplugPod, _ *kubevirt.VirtualMachineInstance) { p.Owner = nil }, Allow},
		"owner finished":      {func(p *HotplugPod, _ *kubevirt.VirtualMachineInstance) { p.Owner.Finished = true }, Allow},
		"owner no launcher":   {func(p *HotplugPod, _ *kubevirt.VirtualMachineInstance) { p.Owner.Launcher = false }, Allow},
		"VMI replaced":        {func(_ *HotplugPod, v *kubevirt.VirtualMachineInstance) { v.UID = "uid-2" }, Allow},
		"VMI finished":        {func(_ *HotplugPod, v *kubevirt.VirtualMachineInstance) { v.Status.Phase = kubevirt.VMIFailed }, Allow},
		"VM shuts down still": {func(_ *HotplugPod, v *kubevirt.VirtualMachineInstance) { v.DeletionTimestamp = new(metav1.Now()) }, Refuse},
	} {
		owner, vmi := given(kubevirt.StrategyNone)
		p := &HotplugPod{Namespace: "ns", Name: "hp-volume-x", Owner: owner}
		c.change(p, vmi)
		a := AdmitHotplug(p, vmi)
		if a.Verdict != c.want || a.Verdict == Refuse && !strings.HasPrefix(a.Message, "cannot evict hotplug pod: hp-volume-x associated with running vmi: vm in namespace ns") {
			t.Errorf("%s: %+v, want %s", name, a, c.want)
		}
	}
	if a := AdmitHotplug(&HotplugPod{Owner: &Pod{Launcher: true, VMI: "vm"}}, nil); a.Verdict != Allow {
		t.Errorf("VMI gone: %+v", a)
	}
}

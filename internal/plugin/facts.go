package plugin

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	podstatus "github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// VM is what the API server shows of one VM. docs/drain.md describes the fields.
type VM struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"` // of the VMI
	Node      string `json:"node,omitempty"`
	Launcher  string `json:"launcher,omitempty"`
	Phase     string `json:"phase"`
	Cause     string `json:"cause,omitempty"`
	// GracePeriodSeconds is nil where neither the VMI nor its agent states one.
	GracePeriodSeconds *int64     `json:"gracePeriodSeconds,omitempty"`
	Deadline           *time.Time `json:"deadline,omitempty"`
	RemainingSeconds   *int64     `json:"remainingSeconds,omitempty"`
	// Guest is why the guest has not shut down so far.
	Guest          string `json:"guest,omitempty"`
	LiveMigratable string `json:"liveMigratable"` // True, False or Unknown
	// NotMigratable is the reason of LiveMigratable, NotMigratableMessage its message.
	NotMigratable        string     `json:"notMigratable,omitempty"`
	NotMigratableMessage string     `json:"notMigratableMessage,omitempty"`
	Mark                 *Mark      `json:"mark,omitempty"`
	Migration            *Migration `json:"migration,omitempty"`
}

// Mark means that the VM is to leave its node.
type Mark struct {
	Cause   string `json:"cause"`
	Reason  string `json:"reason,omitempty"` // of the condition EvictionRequested
	Message string `json:"message,omitempty"`
}

// Migration is the migration of a VM that has not ended.
type Migration struct {
	uid          string
	Name         string `json:"name"`
	Phase        string `json:"phase"`
	Target       string `json:"target,omitempty"` // the node
	Percent      *int   `json:"percent,omitempty"`
	RemainingMiB int64  `json:"remainingMiB,omitempty"`
	// Message is what it waits for in phase Scheduling.
	Message string `json:"message,omitempty"`
}

// Objects are the objects that VMs are described by.
type Objects struct {
	VMIs       []kubevirt.VirtualMachineInstance
	Launchers  []corev1.Pod
	Migrations []kubevirt.VirtualMachineInstanceMigration
}

// phaseTerminating is that of a VM that is being deleted and whose agent has not said so yet.
const phaseTerminating = "Terminating"

// phaseUnknown is that of a VM whose phase nobody has written.
const phaseUnknown = "Unknown"

// running returns the launcher pods that have not ended, by the UID of their VMI. Those of no VMI that
// exists are VMs of their own, and have the key "".
func (o *Objects) running() map[string][]*corev1.Pod {
	known, named := map[string]bool{}, map[string]launcherpod.Owner{}
	for i := range o.VMIs {
		v := &o.VMIs[i]
		known[string(v.UID)], named[v.Namespace+"/"+v.Name] = true, kubevirt.OwnerOf(string(v.UID), v.DeletionTimestamp, &v.Status)
	}
	byVMI := map[string][]*corev1.Pod{}
	for i := range o.Launchers {
		if p := &o.Launchers[i]; !drain.Ended(p) {
			uid := p.Labels[kubevirt.CreatedByLabel]
			of := named[p.Namespace+"/"+cmp.Or(p.Annotations[kubevirt.DomainAnnotation], p.Name)]
			switch {
			case uid == "" && of.Owns(launcherpod.Pod{UID: string(p.UID), Created: p.CreationTimestamp.Time}):
				uid = of.UID
			case !known[uid]:
				uid = ""
			}
			byVMI[uid] = append(byVMI[uid], p)
		}
	}
	return byVMI
}

// VMs describes the VMs of the objects, sorted. A launcher pod without a VMI is a VM of its
// own.
func VMs(o *Objects, now time.Time) []VM {
	byVMI := o.running()
	migrations := drain.Unfinished(o.VMIs, o.Migrations)
	all := make([]VM, 0, len(o.VMIs))
	for i := range o.VMIs {
		v := &o.VMIs[i]
		d := describe(v, launcherOn(byVMI[string(v.UID)], v.Node()), migrations[v.UID], now)
		d.Migration.waits(byVMI[string(v.UID)])
		all = append(all, d)
	}
	for _, p := range byVMI[""] {
		all = append(all, ofPod(p, now))
	}
	slices.SortFunc(all, func(a, b VM) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// launcherOn returns the newest launcher pod on a node, nil without one.
func launcherOn(all []*corev1.Pod, node string) (newest *corev1.Pod) {
	for _, p := range all {
		if p.Spec.NodeName == node && (newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			newest = p
		}
	}
	return newest
}

func describe(v *kubevirt.VirtualMachineInstance, launcher *corev1.Pod, m *kubevirt.VirtualMachineInstanceMigration, now time.Time) VM {
	d := VM{
		Namespace: v.Namespace, Name: v.Name, UID: string(v.UID), Node: v.Node(), LiveMigratable: "Unknown",
		Phase: cmp.Or(string(v.Status.Phase), phaseUnknown), GracePeriodSeconds: stated(v),
	}
	if c := v.Condition(kubevirt.LiveMigratable); c != nil {
		d.LiveMigratable = c.Status
		if c.Status != kubevirt.ConditionTrue {
			d.NotMigratable, d.NotMigratableMessage = c.Reason, c.Message
		}
	}
	if v.Marked() {
		d.Mark = &Mark{Cause: cmp.Or(evacuation.ExplanationOf(v).Cause, evacuation.CauseEviction)}
		if c := v.Condition(kubevirt.EvictionRequested); c != nil && c.Status == kubevirt.ConditionTrue {
			d.Mark.Reason, d.Mark.Message = c.Reason, c.Message
		}
	}
	if m != nil {
		d.Migration = migrationOf(m)
		// KubeVirt writes the target of a migration under way into the VMI alone.
		if st := v.Status.MigrationState; st != nil && m.UID != "" && st.MigrationUID == string(m.UID) {
			d.Migration.Target = cmp.Or(st.TargetNode, d.Migration.Target)
		}
	}
	if v.DeletionTimestamp != nil {
		d.Phase, d.Cause = phaseTerminating, "VMIDeleted"
	}
	if launcher != nil && !v.Final() {
		d.addLauncher(launcher, now)
	}
	return d
}

// stated returns the grace period that a VMI states; a negative one counts as none.
func stated(v *kubevirt.VirtualMachineInstance) *int64 {
	if s := v.Spec.TerminationGracePeriodSeconds; s != nil && *s >= 0 {
		return s
	}
	return nil
}

// addLauncher adds what the launcher pod and the agent's condition say.
func (d *VM) addLauncher(p *corev1.Pod, now time.Time) {
	d.Launcher = p.Name
	if p.DeletionTimestamp != nil {
		d.Phase = phaseTerminating
		if cause := heldFor(p); cause != "" && d.Cause == "" && (d.Mark != nil || d.Migration != nil) {
			d.Phase, d.Cause = podstatus.Held, cause
		}
	}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		s, ok := podstatus.Parse(c.Reason, c.Message)
		if c.Type != podstatus.Type || c.Status != corev1.ConditionTrue || !ok {
			continue
		}
		d.Phase, d.Cause, d.Deadline = s.At(now), s.Cause, &s.Deadline
		d.GracePeriodSeconds, d.Guest = &s.GracePeriodSeconds, s.Guest
		d.RemainingSeconds = new(int64(max(s.Deadline.Sub(now), 0).Round(time.Second) / time.Second))
	}
}

// heldFor returns the reason of a launcher's disruption if its shutdown is held for that, or "".
func heldFor(p *corev1.Pod) string {
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			slices.Contains(strings.Split(p.Annotations[evacuation.HoldForAnnotation], ","), c.Reason) {
			return c.Reason
		}
	}
	return ""
}

// ofPod describes a VM without a VMI.
func ofPod(p *corev1.Pod, now time.Time) VM {
	d := VM{
		Namespace: p.Namespace, Name: nameOf(p), Node: p.Spec.NodeName,
		Phase: cmp.Or(string(p.Status.Phase), phaseUnknown), LiveMigratable: "False", NotMigratable: "NoVMI",
		NotMigratableMessage: "a VM without a VirtualMachineInstance is never moved",
	}
	d.addLauncher(p, now)
	return d
}

// nameOf returns the name of the VM in a launcher pod without a VMI.
func nameOf(p *corev1.Pod) string { return cmp.Or(p.Annotations[kubevirt.DomainAnnotation], p.Name) }

func migrationOf(m *kubevirt.VirtualMachineInstanceMigration) *Migration {
	is := &Migration{Name: m.Name, uid: string(m.UID), Phase: string(evacuation.PhaseOf(m)), Target: m.Spec.AddedNodeSelector[corev1.LabelHostname]}
	if s := m.Status.MigrationState; s != nil {
		is.Target = cmp.Or(s.TargetNode, is.Target)
		if s.Progress != nil {
			is.Percent, is.RemainingMiB = new(int(min(max(s.Progress.Percent, 0), 100))), s.Progress.RemainingMiB
		}
	}
	return is
}

// waits adds what the migration waits for, by its target among the VM's launcher pods.
func (m *Migration) waits(launchers []*corev1.Pod) {
	for _, p := range launchers {
		if m != nil && m.uid != "" && p.Labels[kubevirt.MigrationJobLabel] == m.uid && m.Phase == string(kubevirt.MigrationScheduling) {
			m.Message = drain.TargetText(p)
		}
	}
}

// controller returns kind and name of the controller that would make an object anew, or "".
func controller(o metav1.Object) string {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind != "VirtualMachineInstance" {
		return c.Kind + " " + c.Name
	}
	return ""
}

//go:build !unit

package drains

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// vmgrace starts kubectl-vmgrace, with a command.
func vmgrace(t *testing.T, args ...string) *run {
	t.Helper()
	r := *shared.Rig
	r.Binary = shared.vmgrace
	return &run{r.Begin(t, append(args, "--kubeconfig="+shared.Kubeconfig)...), t}
}

func readVMI(t *testing.T, v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstance {
	t.Helper()
	return rig.Find[kubevirt.VirtualMachineInstance](shared.In(t, "default"), v.Name)
}

func readMigration(t *testing.T, name string) *kubevirt.VirtualMachineInstanceMigration {
	t.Helper()
	return rig.Find[kubevirt.VirtualMachineInstanceMigration](shared.In(t, "default"), name)
}

// migratableVM makes a VM without a mark that can be moved.
func migratableVM(t *testing.T, on string) *kubevirt.VirtualMachineInstance {
	t.Helper()
	v, _ := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	v.Status.EvacuationNodeName = ""
	v.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}
	kit.Must(t, shared.Status().Update(t.Context(), v))
	return v
}

// Given a VM that moves and then shuts down. When status is asked for once, as JSON, and
// followed in a pipe, then it says so, with the deadline of the condition of its launcher pod.
func TestStatusFollowsAVM(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	m := moving{p, migration(t, v, on)}
	m.runs(t, 42)
	follow := vmgrace(t, "status", "-w", "--node", on)
	follow.says("vm default/" + v.Name + ": Running on " + on + ", migratable Unknown")
	follow.said("marked Eviction, migration Running 40 %")
	once := vmgrace(t, "status", "--node", on)
	once.ends(0)
	once.said("PHASE", v.Name+" ", "Running [####......] 42%")

	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "ShuttingDown", Status: corev1.ConditionTrue, Reason: "VMIDeleted",
		Message: "phase=ShuttingDown deadline=2099-01-01T00:00:00Z gracePeriodSeconds=30"})
	kit.Must(t, shared.Status().Update(t.Context(), p))
	follow.says("vm default/" + v.Name + ": ShuttingDown on " + on + ", cause VMIDeleted, grace period 30s, until 2099-01-01T00:00:00Z")
	kit.Must(t, follow.Signal(syscall.SIGINT))
	follow.ends(130)

	asJSON := vmgrace(t, "status", v.Name, "-o", "json")
	asJSON.ends(0)
	var list struct {
		Items []struct {
			Name, Phase, Cause string
			Migration          struct{ Percent int }
		}
	}
	kit.Must(t, json.Unmarshal([]byte(asJSON.Log()), &list))
	if len(list.Items) != 1 || list.Items[0].Phase != "ShuttingDown" || list.Items[0].Cause != "VMIDeleted" || list.Items[0].Migration.Percent != 42 {
		t.Errorf("%+v", list)
	}
	// Given a feature gate that does not exist. Then status says so.
	settings := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevirt"}}
	settings.Spec.Configuration.DeveloperConfiguration = &kubevirt.DeveloperConfiguration{FeatureGates: []string{"NoSuchGate", "PreemptionEvictionLiveMigrations"}}
	shared.In(t, "").Make(settings, "")
	missing := vmgrace(t, "status", "nobody")
	missing.ends(1)
	missing.said("VM default/nobody is not there", `"NoSuchGate" has no effect: there are`, `"PreemptionEvictionLiveMigrations" has no effect: is PreemptionEvictionLiveMigration meant?`)
	gates := vmgrace(t, "status", v.Name, "-o", "json")
	gates.ends(0)
	gates.said(`"unknownFeatureGates"`, `"name": "NoSuchGate"`, `"meant": "PreemptionEvictionLiveMigration"`)
}

// Given a VM that can be moved. When it is migrated to a node, then the migration selects that
// node by its label, and --wait follows it to its end.
func TestMigrateToANodeAndWait(t *testing.T) {
	on, to := newNode(t), newNode(t)
	shared.Kubectl(t, "label", "node", to, "kubernetes.io/hostname=host-of-"+to)
	v := migratableVM(t, on)
	there := vmgrace(t, "migrate", v.Name, "--to", on)
	there.ends(1)
	there.said("is there already")
	created := func(r *run) *kubevirt.VirtualMachineInstanceMigration {
		r.says(" created")
		_, name, _ := strings.Cut(r.Log(), "migration/")
		name, _, _ = strings.Cut(name, " ")
		return readMigration(t, name)
	}
	r := vmgrace(t, "migrate", v.Name, "--to", to, "--wait")
	m := created(r)
	if m.Spec.VMIName != v.Name || len(m.Spec.AddedNodeSelector) != 1 || m.Spec.AddedNodeSelector["kubernetes.io/hostname"] != "host-of-"+to {
		t.Errorf("%+v", m.Spec)
	}
	if o := m.OwnerReferences; len(o) != 1 || o[0].UID != v.UID || o[0].Controller != nil {
		t.Errorf("it would outlive its VMI: %+v", o)
	}
	second := vmgrace(t, "migrate", v.Name)
	second.ends(1)
	second.said("migration " + m.Name + " is under way")
	(&moving{m: m}).runs(t, 57)
	r.says("Running to host-of-" + to + " [#####.....] 50%")
	m.Status.Phase, m.Status.MigrationState.TargetNode = kubevirt.MigrationSucceeded, to
	kit.Must(t, shared.Status().Update(t.Context(), m))
	r.ends(0)
	r.said("vmi/" + v.Name + " moved to " + to)

	r = vmgrace(t, "migrate", "vmi/"+v.Name, "--wait")
	m = created(r)
	m.Status = kubevirt.VirtualMachineInstanceMigrationStatus{Phase: kubevirt.MigrationFailed, MigrationState: &kubevirt.MigrationState{FailureReason: "no room"}}
	kit.Must(t, shared.Status().Update(t.Context(), m))
	r.ends(1)
	r.said("has failed: no room")
}

// Given a marked VM whose migration runs. When it is cancelled, then the mark and the migration
// are gone; while its launcher terminates, it is refused.
func TestCancelOfOneVM(t *testing.T) {
	on := newNode(t)
	v, _ := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	other, p := markedVM(t, on, "other", kubevirt.StrategyLiveMigrate)
	m, kept := moving{m: migration(t, v, on)}, migration(t, other, on)
	m.runs(t, 42)
	r := vmgrace(t, "cancel", v.Name)
	r.ends(0)
	r.said("vmi/"+v.Name+" mark removed", "migration/"+m.m.Name+" cancelled in phase Running")
	if readVMI(t, v).Status.EvacuationNodeName != "" || readMigration(t, m.m.Name) != nil {
		t.Error("the mark or the migration is there")
	}
	again := vmgrace(t, "cancel", v.Name)
	again.ends(0)
	again.said("is not marked and has no migration")
	kit.Must(t, shared.Delete(t.Context(), p.DeepCopy()))
	refused := vmgrace(t, "cancel", other.Name)
	refused.ends(1)
	refused.said("its launcher pod " + p.Name + " is terminating")
	if readVMI(t, other).Status.EvacuationNodeName != on || readMigration(t, kept.Name) == nil {
		t.Error("the mark or the migration of a VM that would be shut down is gone")
	}
}

// Given a node with a VM that moves, a pod whose budget never lets it go, a pod that drains
// leave, and one that goes. When why is asked, then it names the first three with the reason,
// and neither the node nor a pod changes.
func TestWhyNamesWhatKeepsANode(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	(&moving{m: migration(t, v, on)}).runs(t, 42)
	never, goes := newPod(t, on, "never", nil), newPod(t, on, "goes", nil)
	budget(t, on+"-never", never, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 1, CurrentHealthy: 1})
	left := newPod(t, on, "left", func(p *corev1.Pod) { p.Labels["vmgrace.io/drain"] = "Skip" })
	r := vmgrace(t, "why", on)
	r.ends(0)
	r.said(p.Name+": Moving: migration Running, 42 %, 300 MiB left", never.Name+": Failed: PodDisruptionBudget default/"+on+"-never keeps 1 of 1",
		left.Name+": Blocked: drains leave it", "node/"+on+" is kept by 3 of 4 pods")
	if strings.Contains(r.Log(), goes.Name) || unschedulable(t, on) || isTerminating(t, p) || isTerminating(t, goes) {
		t.Errorf("it names a pod that goes, or has changed something:\n%s", r.Log())
	}
	free := vmgrace(t, "why", newNode(t))
	free.ends(0)
	free.said("is empty")
}

// Given a VM. When it is to be shut down and nobody answers, then nothing is done. With
// --grace its launcher is deleted with that grace period and the agent's margin, and then the
// VMI. With --now the grace period of a shutdown under way is cut.
func TestShutdownShortensTheGracePeriod(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	asked := vmgrace(t, "shutdown", v.Name)
	asked.ends(1)
	asked.said("Shut down VM default/"+v.Name+" on node "+on, "say --yes")
	if readVMI(t, v).DeletionTimestamp != nil || isTerminating(t, p) {
		t.Fatal("it did not wait for an answer")
	}
	deletion := func() int64 {
		t.Helper()
		if s := rig.Read[corev1.Pod](shared.In(t, "default"), p.Name).DeletionGracePeriodSeconds; s != nil {
			return *s
		}
		return -1
	}
	// The VMI stays until the agent has shut the VM down.
	shared.In(t, "default").Change(v, `{"metadata":{"finalizers":["vmgrace.io/test"]}}`)
	t.Cleanup(func() {
		_ = shared.Patch(rig.After(t), v, rig.Merge(`{"metadata":{"finalizers":null}}`))
	})
	r := vmgrace(t, "shutdown", v.Name, "--grace=10s", "-y")
	r.ends(0)
	if got := deletion(); got != 12 || readVMI(t, v).DeletionTimestamp == nil {
		t.Errorf("the launcher has %d s, want 12; the VMI's deletion: %v", got, readVMI(t, v).DeletionTimestamp)
	}
	r = vmgrace(t, "shutdown", v.Name, "--now", "-y")
	r.ends(0)
	if got := deletion(); got != 2 {
		t.Errorf("with --now the launcher has %d s, want 2", got)
	}
	r.said("is being deleted already")
	extended := vmgrace(t, "extend", v.Name)
	extended.ends(2)
	extended.said("a grace period can only be shortened")
}

// Given a VM of a controller that would start it again. When it is to be shut down, then it is
// refused, with the name of that controller.
func TestShutdownOfAControlledVMIsRefused(t *testing.T) {
	v := migratableVM(t, newNode(t))
	v.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "web", UID: "u", Controller: new(true)}}
	kit.Must(t, shared.Update(t.Context(), v))
	r := vmgrace(t, "shutdown", v.Name, "-y")
	r.ends(1)
	r.said("belongs to VirtualMachine web")
}

// Given the scripts of completion in $PATH. When kubectl completes the plugin's commands and
// arguments, then it offers commands, VMs and nodes.
func TestCompletionOfVmgraceThroughKubectl(t *testing.T) {
	on := newNode(t)
	v := migratableVM(t, on)
	scripts, err := filepath.Abs("../../cmd/kubectl-vmgrace")
	kit.Must(t, err)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"mi"}, "migrate"}, {[]string{"migrate", "--kubeconfig=" + shared.Kubeconfig, on}, v.Name},
		{[]string{"migrate", "--kubeconfig=" + shared.Kubeconfig, "--to", on}, on}, {[]string{"why", "--kubeconfig=" + shared.Kubeconfig, "n-"}, on},
	} {
		cmd := exec.CommandContext(t.Context(), shared.Command(t.Context()).Path, append([]string{"__complete", "vmgrace"}, c.args...)...)
		cmd.Env = append(shared.Command(t.Context()).Environ(), "PATH="+scripts+":"+filepath.Dir(shared.vmgrace)+":/usr/bin:/bin")
		out, err := cmd.Output()
		kit.Must(t, err)
		if lines := strings.Fields(string(out)); !slices.Contains(lines, c.want) {
			t.Errorf("%q: %q, want %s", c.args, lines, c.want)
		}
	}
}

// Given status on a terminal. When the VM's migration goes on, then the table is drawn anew in
// its place.
func TestStatusIsLiveOnATerminal(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	m := moving{p, migration(t, v, on)}
	m.runs(t, 42)
	s := startOnTerminal(t, "xterm", shared.vmgrace, "status", "-w", "--node", on, "--kubeconfig="+shared.Kubeconfig)
	s.resize(120, 24)
	s.shows("[####......] 42%")
	m.runs(t, 77)
	s.shows("[#######...] 77%")
	s.ctrlC()
	s.ends(soon, 130)
}

package plugin

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	podstatus "github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func vmi(name, node string, phase kubevirt.VMIPhase, conditions ...kubevirt.Condition) kubevirt.VirtualMachineInstance {
	return kubevirt.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Status:     kubevirt.VirtualMachineInstanceStatus{Phase: phase, NodeName: node, Conditions: conditions},
	}
}

func launcherPod(name, node string, shutdown *podstatus.Shutdown) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "virt-launcher-" + name, Labels: map[string]string{kubevirt.CreatedByLabel: "uid-" + name}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if shutdown != nil {
		p.Status.Conditions = []corev1.PodCondition{{Type: podstatus.Type, Status: corev1.ConditionTrue, Reason: shutdown.Cause, Message: shutdown.Message()}}
	}
	return p
}

func migratable() kubevirt.Condition {
	return kubevirt.Condition{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}
}

// objects has a VM in each state that status tells apart.
func objects() *Objects {
	down := &podstatus.Shutdown{Phase: podstatus.ShuttingDown, Cause: "VMIDeleted", Deadline: noon().Add(12 * time.Second), GracePeriodSeconds: 30, Guest: "refused by the guest: Access denied"}
	late := &podstatus.Shutdown{Phase: podstatus.ShuttingDown, Cause: "LauncherSignal", Deadline: noon().Add(-time.Second), GracePeriodSeconds: 5}
	held := &podstatus.Shutdown{Phase: podstatus.Held, Cause: "PreemptionByScheduler", Deadline: noon().Add(90 * time.Second), GracePeriodSeconds: 60}
	deleted, moving, stuck := vmi("deleted", "n1", kubevirt.VMIRunning), vmi("moving", "n1", kubevirt.VMIRunning, migratable()), vmi("stuck", "n2", kubevirt.VMIRunning,
		kubevirt.Condition{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionFalse, Reason: "HostDevice", Message: "it has a host device\n\x1b[2J of its node"},
		kubevirt.Condition{Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, Reason: "NotMigratable", Message: "the VM is to leave its node"})
	deleted.DeletionTimestamp = &metav1.Time{Time: noon()}
	moving.Spec.TerminationGracePeriodSeconds = new(int64(20))
	moving.Status.EvacuationNodeName, stuck.Status.EvacuationNodeName = "n1", "n2"
	stuck.Status.Mark = &kubevirt.Mark{NodeName: "n2", Cause: evacuation.CauseNodeTaint}
	m := kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "m"}, Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: "moving"}}
	m.Status.Phase = kubevirt.MigrationRunning
	m.Status.MigrationState = &kubevirt.MigrationState{TargetNode: "n2", Progress: &kubevirt.MigrationProgress{Percent: 42, RemainingMiB: 300}}
	over := m
	over.Name, over.Status.Phase = "over", kubevirt.MigrationFailed
	// A VM whose VMI is gone while it shuts down.
	bereft := launcherPod("bereft", "n1", &podstatus.Shutdown{Phase: podstatus.ShuttingDown, Cause: "VMIDeleted", Deadline: noon().Add(24 * time.Hour), GracePeriodSeconds: 86400})
	bereft.DeletionTimestamp, bereft.Annotations = &metav1.Time{Time: noon()}, map[string]string{kubevirt.DomainAnnotation: "bereft"}
	// A VM that waits for the scheduler.
	waits := m
	waits.Name, waits.UID, waits.Spec.VMIName, waits.Status.Phase, waits.Status.MigrationState = "waits", "uid-m", "waits", kubevirt.MigrationScheduling, nil
	room := launcherPod("waits", "", nil)
	room.Name, room.Labels[kubevirt.MigrationJobLabel] = "virt-launcher-target", "uid-m"
	room.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"}}
	unsure := vmi("new", "", "")
	unsure.Spec.TerminationGracePeriodSeconds = new(int64(-5))
	alone := launcherPod("alone", "n2", nil)
	alone.Labels = nil
	alone.Annotations = map[string]string{kubevirt.DomainAnnotation: "alone"}
	// The target of the migration is not the VM's launcher yet.
	target := launcherPod("moving", "n2", nil)
	target.Name += "-target"
	return &Objects{
		VMIs: []kubevirt.VirtualMachineInstance{
			moving, stuck, deleted, vmi("down", "n1", kubevirt.VMIRunning), vmi("late", "n1", kubevirt.VMIRunning), vmi("held", "n1", kubevirt.VMIRunning, migratable()),
			unsure, vmi("waits", "n1", kubevirt.VMIRunning, migratable()), vmi("over", "n1", kubevirt.VMISucceeded),
		},
		Launchers: []corev1.Pod{
			launcherPod("moving", "n1", nil), target, launcherPod("stuck", "n2", nil), launcherPod("down", "n1", down), launcherPod("late", "n1", late),
			launcherPod("held", "n1", held), alone, launcherPod("over", "n1", down), bereft, launcherPod("waits", "n1", nil), room,
		},
		Migrations: []kubevirt.VirtualMachineInstanceMigration{m, over, waits},
	}
}

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// Given a VM in each state. Then the table, the wide table and the lines of a pipe are those
// of the golden files.
func TestTheTableShowsEachState(t *testing.T) {
	vms := VMs(objects(), noon())
	golden(t, "table.txt", Table(vms, Layout{}))
	golden(t, "wide.txt", Table(vms, Layout{true, true}))
	var lines strings.Builder
	for i := range vms {
		lines.WriteString(Line(&vms[i]) + "\n")
	}
	golden(t, "lines.txt", lines.String())
	for output, file := range map[string]string{outputJSON: "list.json", outputYAML: "list.yaml"} {
		text, err := (&status{output: output}).encode(vms, nil)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, file, string(text))
	}
}

func TestTheLiveTableFitsTheTerminal(t *testing.T) {
	vms := VMs(objects(), noon())
	for width := range 100 {
		for height := range 12 {
			text := Screen(vms, Layout{true, true}, width, height)
			if n := strings.Count(text, "\n"); n > height {
				t.Fatalf("%d lines on %d", n, height)
			}
			for line := range strings.Lines(text) {
				if len(line)-1 > width || strings.ContainsRune(line, '\x1b') {
					t.Fatalf("%d columns: %q", width, line)
				}
			}
		}
	}
	if text := Screen(vms, Layout{}, 200, 4); !strings.HasSuffix(text, "and 9 more\n") {
		t.Errorf("a small terminal:\n%s", text)
	}
}

// Given a VM that moves. When its migration goes on by 1 %, then a pipe gets no line; it gets
// one for each 10 %.
func TestAPipeGetsALineForEachTenth(t *testing.T) {
	lines := map[string]bool{}
	for percent := range 30 {
		lines[Line(&VM{Migration: &Migration{Phase: "Running", Percent: &percent}})] = true
	}
	if len(lines) != 3 {
		t.Errorf("%d lines: %v", len(lines), lines)
	}
}

// Given a VM that shuts down, made anew under its name. When both change and one goes, then a pipe
// gets a line for each change, and "gone" only once no VM has that name.
func TestAPipeTellsVMsOfOneNameApart(t *testing.T) {
	out := &bytes.Buffer{}
	show := (&status{}).newView(&session{Streams: Streams{Output: drain.Output{Out: out}}})
	former, anew := VM{Namespace: "n", Name: "vm", Phase: "ShuttingDown"}, VM{Namespace: "n", Name: "vm", Phase: "Pending"}
	for _, vms := range [][]VM{{former}, {former, anew}, {former, anew}, {anew}, {}} {
		show(vms)
	}
	if got, want := out.String(), Line(&former)+"\n"+Line(&anew)+"\nvm n/vm: gone\n"; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

// Given a launcher pod without a UID. Then it is that of the VMI that it names while that waits for
// one, as for the agent; one that was made after the VM's end is a VM by itself.
func TestAPodWithoutAUIDIsItsVMIsWhileThatWaits(t *testing.T) {
	for phase, want := range map[kubevirt.VMIPhase]int{kubevirt.VMIPending: 1, kubevirt.VMISucceeded: 2} {
		p := launcherPod("vm", "n1", nil)
		p.Labels, p.Annotations = nil, map[string]string{kubevirt.DomainAnnotation: "vm"}
		all := VMs(&Objects{VMIs: []kubevirt.VirtualMachineInstance{vmi("vm", "n1", phase)}, Launchers: []corev1.Pod{p}}, noon())
		if len(all) != want || want == 2 && (all[0].Launcher != "" || all[1].NotMigratable != "NoVMI") || want == 1 && all[0].Launcher != p.Name {
			t.Errorf("%s: %+v", phase, all)
		}
	}
}

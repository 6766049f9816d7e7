package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

// execute runs the plugin without an API server and returns what it has written.
func execute(t *testing.T, args string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewCommand("1.0", Streams{Output: drain.Output{Out: &out, Err: io.Discard}, In: strings.NewReader("")})
	cmd.SetArgs(strings.Fields(args))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Given a wrong command line. Then the error is one line that says what to do, and no request
// is made.
func TestAWrongCommandLineSaysWhatToDo(t *testing.T) {
	for args, want := range map[string]string{
		"start":                           `"start" is no command`,
		"status -o xml":                   "must be wide, json or yaml",
		"status -w -o yaml":               "say json",
		"status vm -A":                    "not both",
		"status pod/x":                    "say NAME or vmi/NAME",
		"status vmi/":                     "is empty",
		"status --nod":                    "unknown flag: --nod",
		"shutdown":                        "name one VM",
		"shutdown a b":                    "name one VM",
		"shutdown vm --grace=-1s":         "must not be negative",
		"shutdown vm --grace=10":          "missing unit in duration",
		"shutdown vm --grace=1s --now":    "not both",
		"shutdown vm --grace=0s --now":    "not both",
		"extend vm":                       "can only be shortened",
		"extend vm --grace=90s":           "can only be shortened",
		"migrate":                         "name one VM",
		"migrate vm --timeout=1m":         "needs --wait",
		"migrate vm --wait --timeout=-1s": "must not be negative",
		"cancel":                          "name one VM",
		"why":                             "name one node",
		"why n -o yaml":                   "must be json",
		"drain":                           "name a node",
	} {
		_, err := execute(t, args)
		if !errors.Is(err, drain.ErrUsage) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestHelpHasTheSectionsOfKubectl(t *testing.T) {
	for _, c := range []string{"status", "shutdown", "extend", "migrate", "cancel", "why"} {
		for _, args := range []string{c + " --help", "help " + c} {
			text, err := execute(t, args)
			for _, section := range []string{"\n\nExamples:\n", "\n\nOptions:\n", "--kubeconfig", "\nUsage:\n  kubectl vmgrace " + c} {
				if err != nil || !strings.Contains(text, section) {
					t.Errorf("%s: no %q in (%v)\n%s", args, section, err, text)
				}
			}
		}
	}
	text, _ := execute(t, "")
	for _, c := range []string{"cancel", "drain", "extend", "migrate", "shutdown", "status", "why"} {
		if !strings.Contains(text, "\n  "+c+" ") {
			t.Errorf("the help does not name %s:\n%s", c, text)
		}
	}
	if text, _ := execute(t, "drain --help"); !strings.Contains(text, "kubectl vmgrace drain --cancel NODE") {
		t.Errorf("the help of drain:\n%s", text)
	}
}

func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"s":                  "shutdown status :4",
		"status -o ":         "json wide yaml :4",
		"why n -o ":          "json :4",
		"drain --dry-run=c":  "client :4",
		"migrate vm --wai":   "--wait :4",
		"status --no-such ":  ":4",
		"shutdown vm other ": ":4",
	} {
		cmd := "__complete " + args
		var out bytes.Buffer
		root := NewCommand("1.0", Streams{Output: drain.Output{Out: &out, Err: io.Discard}})
		root.SetArgs(strings.Split(cmd, " "))
		err := root.ExecuteContext(t.Context())
		var got []string
		for line := range strings.Lines(out.String()) {
			first, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, first)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q (%v)", args, got, want, err)
		}
	}
}

// Given grace periods of --grace and of the pod. Then the pod is deleted with the margin that
// the agent keeps before kubelet's kill, never with 0, and never with more than its own.
func TestTheGracePeriodOfTheLauncher(t *testing.T) {
	for _, c := range []struct {
		grace    time.Duration
		own, is  int64 // of the pod, and of its deletion
		want     int64
		unneeded bool
	}{
		{0, 60, 0, 2, false}, {10 * time.Second, 60, 0, 12, false}, {1500 * time.Millisecond, 60, 0, 4, false}, {50 * time.Second, 30, 0, 30, false},
		{10 * time.Second, 60, 60, 12, false}, {10 * time.Second, 60, 12, 12, true}, {10 * time.Second, 60, 5, 12, true},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &c.own}}
		if c.is > 0 {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: noon()}, &c.is
		}
		got, needed := (&shutdown{grace: c.grace, graceSet: true}).podGrace(p)
		if got != c.want || needed == c.unneeded {
			t.Errorf("%+v: %d s, %v", c, got, needed)
		}
	}
	if got, _ := (&shutdown{now: true}).podGrace(&corev1.Pod{}); got != 2 {
		t.Errorf("--now: %d s", got)
	}
}

func TestAGracePeriodIsNotExtended(t *testing.T) {
	v := vmi("vm", "n1", kubevirt.VMIRunning)
	v.Spec.TerminationGracePeriodSeconds = new(int64(30))
	if err := (&shutdown{grace: 31 * time.Second}).allowed(&v); err == nil || !strings.Contains(err.Error(), "is 30s, and a grace period can only be shortened") {
		t.Errorf("31 s: %v", err)
	}
	if err := (&shutdown{grace: 30 * time.Second}).allowed(&v); err != nil {
		t.Errorf("30 s: %v", err)
	}
}

func TestNothingIsDoneWithoutYes(t *testing.T) {
	for answer, ok := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "n\n": false, "\n": false, "yeah\n": false, "": false} {
		s := &session{Streams: Streams{Output: drain.Output{Out: io.Discard}, In: strings.NewReader(answer)}}
		if err := s.confirm(t.Context(), "?"); (err == nil) != ok || err != nil && !errors.Is(err, errDeclined) {
			t.Errorf("%q: %v", answer, err)
		}
	}
	silent, write := io.Pipe()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &session{Streams: Streams{Output: drain.Output{Out: io.Discard}, In: silent}}
	if err := s.confirm(ctx, "?"); !errors.Is(err, drain.ErrInterrupted) {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

func TestAMigrationThatWouldFailIsNotCreated(t *testing.T) {
	ended, deleted, nowhere, pinned := vmi("vm", "n1", kubevirt.VMIFailed, migratable()), vmi("vm", "n1", "", migratable()), vmi("vm", "", "", migratable()),
		vmi("vm", "n1", "", kubevirt.Condition{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionFalse, Reason: "HostDevice", Message: "it has one"})
	deleted.DeletionTimestamp = &metav1.Time{Time: noon()}
	for want, v := range map[string]kubevirt.VirtualMachineInstance{
		"it has ended: Failed": ended, "it is being deleted": deleted, "it is on no node": nowhere, "HostDevice: it has one": pinned,
		"it is not known yet": vmi("vm", "n1", ""),
	} {
		if got := whyNotMoved(&v, nil); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	v := vmi("vm", "n1", "", migratable())
	m := kubevirt.VirtualMachineInstanceMigration{Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: "vm"}, ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	if got := whyNotMoved(&v, []kubevirt.VirtualMachineInstanceMigration{m}); !strings.HasPrefix(got, "migration m is under way") {
		t.Errorf("%q", got)
	}
	m.Status.Phase = kubevirt.MigrationFailed
	if got := whyNotMoved(&v, []kubevirt.VirtualMachineInstanceMigration{m}); got != "" {
		t.Errorf("after a failed one: %q", got)
	}
}

func TestTheProgressOfAMigrationIsOneLine(t *testing.T) {
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	if got := progress(migrationOf(m)); got != "migration/m Pending" {
		t.Errorf("%q", got)
	}
	m.Status.Phase = kubevirt.MigrationRunning
	m.Status.MigrationState = &kubevirt.MigrationState{TargetNode: "n2", Progress: &kubevirt.MigrationProgress{Percent: 57}}
	if got := progress(migrationOf(m)); got != "migration/m Running to n2 [#####.....] 50%" {
		t.Errorf("%q", got)
	}
}

// Given a migration whose target pod finds no node. Then its line has the scheduler's words.
func TestAMigrationThatWaitsHasTheSchedulersWords(t *testing.T) {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "target", Labels: map[string]string{kubevirt.MigrationJobLabel: "u"}}}
	target.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"}}
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m", UID: "u"}}
	m.Status.Phase = kubevirt.MigrationScheduling
	store := fake.NewClientBuilder().WithObjects(target).Build()
	if got := progress(awaited(t.Context(), store, m)); got != "migration/m Scheduling: 0/2 nodes are available" {
		t.Errorf("%q", got)
	}
}

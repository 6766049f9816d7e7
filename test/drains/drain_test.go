//go:build !unit

package drains

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/test/kit"
)

// evicting returns the pods that a dry run names, and the lines that say why others stay.
func evicting(text string) (pods, refused []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "evicting pod ") {
			pods = append(pods, line)
		}
		if at := strings.Index(line, "cannot delete "); at >= 0 {
			refused = append(refused, line[at:])
		}
	}
	slices.Sort(pods)
	return pods, refused
}

// Given a node with one pod: managed, unmanaged, with an emptyDir, a mirror pod, ended, or
// of a missing DaemonSet. When kubectl drain and vmdrain make a dry run, with and without
// the flags that allow the pod, then vmdrain names the same pods as kubectl drain and gives
// its reasons in kubectl's words. Otherwise vmdrain would evict a pod that kubectl drain
// leaves alone.
func TestItDrainsThePodsThatKubectlDrains(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"managed":   nil,
		"unmanaged": func(p *corev1.Pod) { p.OwnerReferences = nil },
		"emptydir": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		},
		"mirror": func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		},
		"ended":            func(p *corev1.Pod) { p.OwnerReferences, p.Status.Phase = nil, corev1.PodSucceeded },
		"orphan-daemonset": func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" },
	} {
		t.Run(name, func(t *testing.T) {
			on := newNode(t)
			newPod(t, on, name, change)
			for _, flags := range [][]string{{}, {"--force", "--ignore-daemonsets", "--delete-emptydir-data"}} {
				args := append([]string{"--dry-run=client", on}, flags...)
				theirs, err := shared.Command(t.Context(), append([]string{"drain"}, args...)...).CombinedOutput()
				wantPods, wantRefused := evicting(string(theirs))
				r := begin(t, args...)
				status := 0
				if err != nil {
					status = 1
				}
				r.ends(status)
				pods, refused := evicting(r.Log())
				if !slices.Equal(pods, wantPods) || (len(refused) > 0) != (len(wantRefused) > 0) {
					t.Errorf("%v: kubectl drain says\n%s\nvmdrain\n%s", flags, theirs, r.Log())
				}
				for _, line := range refused { // in kubectl's words
					if what, _, _ := strings.Cut(line, ": "); !strings.Contains(string(theirs), what) {
						t.Errorf("%v: kubectl drain does not say %q: %s", flags, what, theirs)
					}
				}
			}
		})
	}
}

// Given a node with two pods. When vmdrain makes a dry run on the server, then it reports
// what the API server would answer, and neither the node nor a pod changes.
func TestAServerSideDryRunAsksAndChangesNothing(t *testing.T) {
	on := newNode(t)
	a, b := newPod(t, on, "a", nil), newPod(t, on, "b", nil)
	theirs, err := shared.Command(t.Context(), "drain", on, "--dry-run=server").CombinedOutput()
	kit.Must(t, err)
	want, _ := evicting(string(theirs))
	versions := func() string {
		return shared.Kubectl(t, "get", "node/"+on, "-o", "jsonpath={.metadata.resourceVersion} ") +
			shared.Kubectl(t, "get", "pods", "-l", "on="+on, "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	}
	before := versions()
	r := begin(t, on, "--dry-run=server")
	r.ends(0)
	got, _ := evicting(r.Log())
	for i := range got {
		got[i] = strings.TrimSuffix(got[i], ": Accepted")
	}
	if !slices.Equal(got, want) || len(got) != 2 {
		t.Errorf("kubectl drain says\n%s\nvmdrain\n%s", theirs, r.Log())
	}
	// One budget refuses its pod for now, and the other one always does.
	budget(t, on+"-a", a, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 2, CurrentHealthy: 1})
	begin(t, on, "--dry-run=server").ends(0)
	budget(t, on+"-b", b, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 1, CurrentHealthy: 1})
	r = begin(t, on, "--dry-run=server")
	r.ends(1)
	r.said(a.Name+" (server dry run): Blocked", b.Name+" (server dry run): Failed: PodDisruptionBudget", "node/"+on+" would not be drained")
	if now := versions(); now != before || unschedulable(t, on) {
		t.Errorf("versions of node and pods: %s, before: %s", now, before)
	}
}

func TestItEndsWhenTheLastPodIsGone(t *testing.T) {
	on := newNode(t)
	a, b := newPod(t, on, "a", nil), newPod(t, on, "b", nil)
	kept := newPod(t, on, "kept", func(p *corev1.Pod) { p.Labels["vmgrace.io/drain"] = "Skip" })
	r := begin(t, on)
	terminating(t, a)
	terminating(t, b)
	end(t, a)
	end(t, b)
	r.ends(0)
	r.said("node/"+on+" cordoned", "pod default/"+a.Name+": Drained", "node/"+on+" drained", "skipping")
	if isTerminating(t, kept) {
		t.Error("a pod that is to be skipped was evicted")
	}
	if !unschedulable(t, on) {
		t.Error("the node is not cordoned")
	}
	begin(t, on).ends(0) // again: nothing is left
}

func TestThroughKubectl(t *testing.T) {
	on := newNode(t)
	cmd := shared.Command(t.Context(), "vmdrain", on, "-o", "json", "--kubeconfig="+shared.Kubeconfig)
	cmd.Args = slices.Delete(cmd.Args, 1, 3) // a plugin's flags come after its name
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(shared.Binary)+":/usr/bin:/bin")
	out, err := cmd.Output()
	kit.Must(t, err)
	if _, err := exec.LookPath(shared.Binary); err != nil {
		t.Fatal(err)
	}
	var results []string
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		var o struct{ Event, Node, Result string }
		kit.Must(t, json.Unmarshal(s.Bytes(), &o))
		results = append(results, o.Event+" "+o.Result)
	}
	if want := []string{"cordoned ", "result drained"}; !slices.Equal(results, want) {
		t.Errorf("%q, want %q", results, want)
	}
}

// Given the script kubectl_complete-vmdrain in $PATH. When kubectl completes the arguments
// of vmdrain, then it calls the script and offers the nodes that are not named yet.
func TestCompletionThroughKubectl(t *testing.T) {
	named, other := newNode(t), newNode(t)
	cmd := shared.Command(t.Context(), "__complete", "vmdrain", "--kubeconfig="+shared.Kubeconfig, named, "n-")
	cmd.Args = slices.Delete(cmd.Args, 1, 3)
	scripts, err := filepath.Abs("../../cmd/kubectl-vmdrain")
	kit.Must(t, err)
	cmd.Env = append(cmd.Env, "PATH="+scripts+":"+filepath.Dir(shared.Binary)+":/usr/bin:/bin")
	out, err := cmd.Output()
	kit.Must(t, err)
	if lines := strings.Fields(string(out)); slices.Contains(lines, named) || !slices.Contains(lines, other) || lines[len(lines)-1] != ":4" {
		t.Errorf("after %s: %q", named, lines)
	}
}

// budget makes a budget that selects a pod, with a status as its controller writes it.
func budget(t *testing.T, name string, p *corev1.Pod, status policyv1.PodDisruptionBudgetStatus) *policyv1.PodDisruptionBudget {
	t.Helper()
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}}}}
	shared.In(t, "").Make(b, "")
	status.ObservedGeneration = b.Generation
	b.Status = status
	kit.Must(t, shared.Status().Update(t.Context(), b))
	return b
}

func TestBudgets(t *testing.T) {
	t.Run("one that frees up later", func(t *testing.T) {
		on := newNode(t)
		p := newPod(t, on, "p", nil)
		b := budget(t, on, p, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 2, CurrentHealthy: 1})
		r := begin(t, on)
		eventually(t, "it waits for the budget", func() bool {
			return strings.Contains(r.Log(), p.Name+": Blocked: waits for PodDisruptionBudget default/"+on)
		})
		b.Status.CurrentHealthy, b.Status.DisruptionsAllowed = 2, 1
		kit.Must(t, shared.Status().Update(t.Context(), b))
		terminating(t, p)
		end(t, p)
		r.ends(0)
	})
	t.Run("one that never does, beside a pod that goes", func(t *testing.T) {
		on := newNode(t)
		stays, goes := newPod(t, on, "stays", nil), newPod(t, on, "goes", nil)
		budget(t, on, stays, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 1, CurrentHealthy: 1})
		r := begin(t, on)
		terminating(t, goes)
		end(t, goes)
		r.ends(1)
		if want := stays.Name + ": Failed: PodDisruptionBudget default/" + on + " keeps 1 of 1"; !strings.Contains(r.Log(), want) || isTerminating(t, stays) {
			t.Errorf("it does not say %q:\n%s", want, r.Log())
		}
	})
}

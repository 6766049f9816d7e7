//go:build !unit

package controller_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

var (
	api    *cluster.API
	binary string
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(func(a *cluster.API) int { api = a; return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cluster-controller")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "cluster-controller")
		var out []byte
		if out, err = exec.Command("go", "build", "-race", "-o", binary, "../../cmd/cluster-controller").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// world is an API server with the CRDs, and a namespace of the test's own.
type world struct {
	*testing.T
	client.Client
	ns string
}

func given(t *testing.T) world {
	t.Helper()
	for _, what := range [][]string{
		{"apply", "-k", "../../deploy/crds"}, {"apply", "-f", "../../deploy/controller/evacuationpolicies.yaml"},
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"},
	} {
		api.Kubectl(t, what...)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", api.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	w := world{t, c, "t" + strings.ToLower(fmt.Sprintf("%x", time.Now().UnixNano()))}
	w.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})
	w.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vmgrace-system"}})
	t.Cleanup(w.tidy)
	return w
}

// tidy deletes what other tests would see.
func (w world) tidy() {
	ctx := context.Background()
	for _, o := range []client.Object{&kubevirt.VirtualMachineInstance{}, &kubevirt.VirtualMachineInstanceMigration{}, &kubevirt.KubeVirt{}, &corev1.Pod{}} {
		if err := w.DeleteAllOf(ctx, o, client.InNamespace(w.ns), client.GracePeriodSeconds(0)); err != nil {
			w.Errorf("tidy: %v", err)
		}
	}
	_ = w.DeleteAllOf(ctx, &v1alpha1.EvacuationPolicy{})
	_ = w.DeleteAllOf(ctx, &corev1.Node{})
}

func (w world) make(o client.Object) {
	w.Helper()
	if err := w.Create(w.Context(), o); client.IgnoreAlreadyExists(err) != nil {
		w.Fatalf("%T %s: %v", o, o.GetName(), err)
	}
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// process is a cluster-controller.
type process struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (w world) controller(args ...string) *process {
	w.Helper()
	p := &process{}
	args = append([]string{"--kubeconfig=" + api.Kubeconfig, "--metrics-address=", "--health-address=", "-v",
		"--controllers=disruption-budgets,evacuation"}, args...)
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	w.must(p.cmd.Start())
	w.Cleanup(func() {
		p.kill()
		if log := p.output(); w.Failed() || strings.Contains(log, "DATA RACE") {
			w.Errorf("output of cluster-controller:\n%s", log)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (w world) alone() *process { w.Helper(); return w.controller("--leader-elect=false") }

// soon bounds waits without a bound of their own; the machine may be loaded.
const soon = 30 * time.Second

func (w world) eventually(what string, holds func() bool) {
	w.Helper()
	node.Eventually(w, soon, holds, "%s", what)
}

func (w world) node(name string, change ...func(*corev1.Node)) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(n)
	}
	w.make(n)
	w.ready(name, corev1.ConditionTrue)
	// A new node stays tainted until a controller finds it Ready; none runs here.
	w.taints(name)
	return n
}

func (w world) ready(name string, status corev1.ConditionStatus) {
	w.Helper()
	api.Kubectl(w, "patch", "node", name, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"%s"}]}}`, status))
}

func (w world) taints(name string, keys ...string) {
	w.Helper()
	var all []string
	for _, k := range keys {
		all = append(all, fmt.Sprintf(`{"key":"%s","effect":"NoSchedule"}`, k))
	}
	api.Kubectl(w, "patch", "node", name, "--type=merge", "-p", `{"spec":{"taints":[`+strings.Join(all, ",")+`]}}`)
}

// vm makes a VMI on a node with its launcher pod, both running.
func (w world) vm(name, node string, strategy kubevirt.EvictionStrategy, conditions string) *kubevirt.VirtualMachineInstance {
	w.Helper()
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	if strategy != "" {
		v.Spec.EvictionStrategy = &strategy
	}
	w.make(v)
	w.status(v, fmt.Sprintf(`{"phase":"Running","nodeName":"%s","conditions":[%s]}`, node, conditions))
	w.launcher(v, "virt-launcher-"+name, node)
	return v
}

const migratable = `{"type":"LiveMigratable","status":"True","unknownField":"kept"}`

func (w world) launcher(v *kubevirt.VirtualMachineInstance, name, node string) {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: name,
			Labels:      map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: string(v.UID)},
			Annotations: map[string]string{kubevirt.DomainAnnotation: v.Name},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: "x"}}},
	}
	w.make(pod)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`))
	w.must(w.Status().Patch(w.Context(), pod, patch))
}

func (w world) status(v *kubevirt.VirtualMachineInstance, status string) {
	w.Helper()
	w.must(w.Status().Patch(w.Context(), v, client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`))))
}

func (w world) mark(v *kubevirt.VirtualMachineInstance, cordoned bool) {
	w.Helper()
	if cordoned {
		w.must(w.Patch(w.Context(), v, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"vmgrace.io/cordoned":"true"}}}`))))
	}
	w.status(v, `{"evacuationNodeName":"`+v.Status.NodeName+`"}`)
}

func (w world) read(v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstance {
	w.Helper()
	now := &kubevirt.VirtualMachineInstance{}
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(v), now))
	return now
}

func (w world) migrations() []kubevirt.VirtualMachineInstanceMigration {
	w.Helper()
	var all kubevirt.VirtualMachineInstanceMigrationList
	w.must(w.List(w.Context(), &all, client.InNamespace(w.ns)))
	return all.Items
}

// event waits for an Event about an object.
func (w world) event(about, reason, words string) {
	w.Helper()
	w.eventually("Event "+reason+" about "+about, func() bool {
		return strings.Contains(api.Kubectl(w, "get", "events", "-A", "-o",
			`jsonpath={range .items[*]}{.involvedObject.name} {.reason} {.message}{"\n"}{end}`,
			"--field-selector=reason="+reason+",involvedObject.name="+about), words)
	})
}

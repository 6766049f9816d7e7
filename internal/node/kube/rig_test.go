//go:build !unit

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// shared is the API server of all tests that do not harm it.
var shared *cluster.API

// soon bounds waits for which no time is promised.
const soon = 30 * time.Second

func TestMain(m *testing.M) {
	SilenceLibraries()
	code := cluster.Main(func(a *cluster.API) int {
		shared = a
		if err := prepare(a); err != nil {
			fmt.Println(err)
			return 1
		}
		return m.Run()
	})
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// The tests use the manifests that are shipped.
const (
	crdFile  = "../../../deploy/crds/virtualmachineinstances.yaml"
	rbacFile = "../../../deploy/daemonset/rbac.yaml"
	role     = "vmgrace-node-agent"
)

// prepare makes the CRD and the agent's role known to an API server.
func prepare(a *cluster.API) error {
	for _, args := range [][]string{
		{"create", "namespace", "vmgrace-system"},
		{"apply", "-n", "vmgrace-system", "-f", rbacFile},
		{"apply", "-f", crdFile},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/" + kubevirt.CRD},
	} {
		if _, err := a.TryKubectl(context.Background(), "", args...); err != nil {
			return err
		}
	}
	return nil
}

// rig is a Source of a node of its own. It talks through a proxy to a real API
// server, as a user with the agent's rights.
type rig struct {
	*testing.T
	*Source
	api   *cluster.API
	admin *rest.RESTClient
	proxy *proxy
	name  string // of the node, the namespace and the user
	stop  func() // ends the Source, and waits for that

	mu      sync.Mutex
	changed map[string]int
	log     bytes.Buffer
}

func newRig(t *testing.T) *rig { t.Helper(); return newRigAt(t, shared) }

// newRigAt does not start the Source.
func newRigAt(t *testing.T, api *cluster.API) *rig {
	t.Helper()
	r := &rig{T: t, api: api, changed: map[string]int{}, stop: func() {}}
	r.name = fmt.Sprintf("kube-%x", time.Now().UnixNano()&0xffffffff)
	var err error
	if r.admin, err = newClient(api.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.admin.Client.CloseIdleConnections)
	r.must("POST", "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, r.name))
	r.must("POST", "/api/v1/namespaces/"+r.name+"/serviceaccounts", `{"metadata":{"name":"default"}}`)
	r.permit()
	r.proxy = newProxy(t, api.As(t, r.name).Kubeconfig)
	r.renew()
	return r
}

const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

// permit gives the rig's user the role of the agent.
func (r *rig) permit() {
	r.Helper()
	r.must("POST", bindings, fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[1]q}]}`, r.name, role))
}

// renew makes another Source, as a restart of the agent does.
func (r *rig) renew() {
	r.Helper()
	r.stop()
	r.Source = New(Config{
		Kubeconfig: r.proxy.kubeconfig, Node: r.name,
		Log: slog.New(slog.NewTextHandler(r, nil)), Now: mono,
		Changed: func(_, name string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changed[name]++
		},
	})
	if err := r.Open(); err != nil {
		r.Fatal(err)
	}
}

// start runs the Source until the end of the test.
func (r *rig) start() *rig {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, s := make(chan struct{}), r.Source
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			r.Errorf("the Source ended with %v", err)
		}
	}()
	r.stop = func() {
		begin := time.Now()
		cancel()
		<-ended
		if d := time.Since(begin); d > time.Second {
			r.Errorf("the Source took %v to end", d)
		}
		r.stop = func() {}
	}
	r.Cleanup(func() { r.stop() })
	return r
}

// watching starts the Source and waits until it is up.
func (r *rig) watching() *rig {
	r.Helper()
	r.start()
	r.eventually(func() bool { return r.Up() && r.vmis.synced() }, "the Source is not up")
	return r
}

func mono() grace.Mono {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return grace.Mono(ts.Nano())
}

func (r *rig) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *rig) changes(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed[name]
}

// toldOfAll waits until the Source has notified of all changes so far. It makes a
// VMI of this unused name: as the order is kept, its change comes last.
func (r *rig) toldOfAll(name string) {
	r.Helper()
	r.makeVMI(name, "", `{}`)
	r.eventually(func() bool { return r.changes(name) > 0 }, "nobody was told of %s", name)
}

func (r *rig) eventually(cond func() bool, format string, args ...any) {
	r.Helper()
	if !node.Poll(r.Context(), soon, cond) {
		r.Fatalf(format+"\n%s", append(args, r.logged())...)
	}
}

// do sends a request as administrator, past the proxy.
func (r *rig) do(verb, path, body string) answer {
	r.Helper()
	path, query, _ := strings.Cut(path, "?")
	req := r.admin.Verb(verb).AbsPath(path)
	for _, pair := range strings.FieldsFunc(query, func(c rune) bool { return c == '&' }) {
		k, v, _ := strings.Cut(pair, "=")
		req = req.Param(k, v)
	}
	if body != "" {
		kind := "application/json"
		if verb == "PATCH" {
			kind = "application/merge-patch+json"
		}
		req = req.SetHeader("Content-Type", kind).Body([]byte(body))
	}
	a, err := ask(context.Background(), req)
	if apierrors.IsNotFound(err) {
		return answer{code: http.StatusNotFound} // plain text: the resource is not served
	}
	if err != nil {
		r.Fatalf("%s %s: %v", verb, path, err)
	}
	return a
}

func (r *rig) must(verb, path, body string) answer {
	r.Helper()
	a := r.do(verb, path, body)
	if a.code/100 != 2 {
		r.Fatalf("%s %s: %d %s", verb, path, a.code, a.body)
	}
	return a
}

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualmachineinstances.kubevirt.io"

func (r *rig) vmiPath(name string) string {
	return "/apis/kubevirt.io/v1/namespaces/" + r.name + "/virtualmachineinstances/" + name
}

func (r *rig) podPath(name string) string { return "/api/v1/namespaces/" + r.name + "/pods/" + name }

// makeVMI makes a VMI on this node, with additional metadata and this spec. It
// returns what the Source must show of it.
func (r *rig) makeVMI(name, metadata, spec string) grace.VMI {
	r.Helper()
	return r.makeVMIOn(r.name, name, metadata, spec)
}

func (r *rig) makeVMIOn(nodeName, name, metadata, spec string) grace.VMI {
	r.Helper()
	body := fmt.Sprintf(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":%q,"labels":{"kubevirt.io/nodeName":%q}%s},"spec":%s}`,
		name, nodeName, metadata, spec)
	path := strings.TrimSuffix(r.vmiPath(""), "/")
	var a answer
	// A restored CRD takes a moment to be served.
	r.eventually(func() bool { a = r.do("POST", path, body); return a.code != http.StatusNotFound }, "VMIs cannot be made")
	if a.code != http.StatusCreated {
		r.Fatalf("make VMI %s: %d %s", name, a.code, a.body)
	}
	var o object
	if err := json.Unmarshal(a.body, &o); err != nil {
		r.Fatal(err)
	}
	return grace.VMI{State: grace.VMIPresent, UID: string(o.UID), Created: o.CreationTimestamp.UTC(), Grace: statedGrace(o.Spec), DeletingAt: grace.Never}
}

// sees waits until the Source shows exactly this of a VMI.
func (r *rig) sees(name string, want grace.VMI) {
	r.Helper()
	r.eventually(func() bool { return r.VMI(r.name, name) == want }, "VMI %s is not seen as %+v", name, want)
}

// misses waits until the Source does not show a VMI.
func (r *rig) misses(name string) {
	r.Helper()
	r.eventually(func() bool { return r.VMI(r.name, name).State == grace.VMIAbsent }, "VMI %s is still there", name)
}

// fate asks what became of a VMI.
func (r *rig) fate(name string, v grace.VMI) (grace.Fate, error) {
	r.Helper()
	return r.Confirm(context.Background(), r.name, name, v.UID, v.Created)
}

func (r *rig) wantFate(name string, v grace.VMI, want grace.Fate) {
	r.Helper()
	f, err := r.fate(name, v)
	if want != grace.FateUnknown { // while a watch restarts, ask again, as the agent does
		r.eventually(func() bool { f, err = r.fate(name, v); return !errors.Is(err, errNotAsked) }, "VMI "+name+": nobody is asked")
	}
	if f != want || (err != nil) != (want == grace.FateUnknown) {
		r.Errorf("VMI %s: fate %q, %v; want %q", name, f, err, want)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// vmiFile looks like KubeVirt's VMIs: 4.6 kB of spec and status. The bench runs in the
// repository's root and applies its manifests.
const vmiFile = "test/bench/vmi.json"

const benchNamespace = "vmgrace-bench"

// vmiPath returns the path of a VMI, or without a name that of all VMIs in the namespace.
func vmiPath(namespace, name string) string {
	return strings.TrimSuffix("/apis/kubevirt.io/v1/namespaces/"+namespace+"/virtualmachineinstances/"+name, "/")
}

// fleet is an API server with VMIs and without kubelets. Its nodes are only names. All VMs
// that run are in the libvirt of this machine.
type fleet struct {
	*bench
	api        *cluster.API
	http       *http.Client
	kubeconfig string              // that of the agent, as shipped
	manifest   string              // of a VMI
	vmis       map[string][]string // by node
	made       int
	spaces     []string               // the namespaces that have the VMIs
	guests     map[string]*node.Guest // by VMI
}

// space returns the namespace of a VMI.
func (f *fleet) space(name string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "vm-"))
	f.must(err)
	return f.spaces[n%len(f.spaces)]
}

func (b *bench) fleet() *fleet {
	b.Helper()
	f := &fleet{bench: b, api: cluster.NewAPI(b), vmis: map[string][]string{}, spaces: []string{benchNamespace},
		guests: map[string]*node.Guest{}}
	manifest, err := os.ReadFile(vmiFile)
	b.must(err)
	f.manifest, f.http = string(manifest), f.api.HTTP()
	b.Cleanup(f.http.CloseIdleConnections)
	f.api.Kubectl(b, "create", "namespace", benchNamespace)
	f.api.Kubectl(b, "apply", "-k", "deploy/crds")
	f.api.Kubectl(b, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "--timeout=60s")
	f.api.Kubectl(b, "apply", "-k", "deploy/daemonset")
	f.kubeconfig = f.api.ServiceAccount(b, "vmgrace-system", "node-agent").Kubeconfig
	return f
}

// fill makes n VMIs on a node.
func (f *fleet) fill(nodeName string, n int) {
	f.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for range n {
		name := fmt.Sprintf("vm-%05d", f.made)
		f.made++
		f.vmis[nodeName] = append(f.vmis[nodeName], name)
		group.Go(func() error { return f.create(nodeName, name) })
	}
	f.must(group.Wait())
}

func (f *fleet) create(nodeName, name string) error {
	id := strings.TrimPrefix(name, "vm-")
	text := strings.NewReplacer("$NAME", name, "$NODE", nodeName, "$ID", "0000000"+id, "$MAC", "3a:"+id[1:3]+":"+id[3:5], "$OCTET", id[3:5],
		`"namespace": "vmgrace-bench"`, fmt.Sprintf(`"namespace": %q`, f.space(name))).Replace(f.manifest)
	if err := f.ask(http.MethodPost, vmiPath(f.space(name), ""), text); err != nil {
		return err
	}
	// The API server drops the status at a creation, so a second request sets it.
	var made struct {
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		return err
	}
	return f.ask(http.MethodPatch, vmiPath(f.space(name), name)+"/status", fmt.Sprintf(`{"status":%s}`, made.Status))
}

func (f *fleet) ask(method, path, body string) error {
	r, err := http.NewRequestWithContext(f.Context(), method, f.api.URL+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %.200s", method, path, resp.Status, text)
	}
	return err
}

// watcher is the agent of one of the fleet's nodes.
type watcher struct {
	*node.Agent
	fleet *fleet
}

func (f *fleet) watcher(nodeName string) *watcher {
	f.Helper()
	return &watcher{f.node().ClusterAgent(f, f.kubeconfig, nodeName), f}
}

// watch starts the agent and waits until it watches VMIs and its start has settled.
func (w *watcher) watch() {
	f := w.fleet
	w.Start(f)
	node.Eventually(f, time.Minute, func() bool { return w.Metrics(f)["vmgrace_vmi_watch_up"] == 1 }, "the agent watches")
	f.pause(settle)
}

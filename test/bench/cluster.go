package main

import (
	"encoding/json"
	"errors"
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
func (f *fleet) fill(nodeName string, n int) { f.fillAll([]string{nodeName}, n, nil) }

// fillAll makes n VMIs on these nodes in turn, and calls then for each, with its UID.
func (f *fleet) fillAll(nodes []string, n int, then func(nodeName, name, uid string) error) {
	f.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for range n {
		name, on := fmt.Sprintf("vm-%05d", f.made), nodes[f.made%len(nodes)]
		f.made++
		f.vmis[on] = append(f.vmis[on], name)
		group.Go(func() error {
			uid, err := f.create(on, name)
			if err != nil || then == nil {
				return err
			}
			return then(on, name, uid)
		})
	}
	f.must(group.Wait())
}

func (f *fleet) create(nodeName, name string) (uid string, err error) {
	id := strings.TrimPrefix(name, "vm-")
	text := strings.NewReplacer("$NAME", name, "$NODE", nodeName, "$ID", "0000000"+id, "$MAC", "3a:"+id[1:3]+":"+id[3:5], "$OCTET", id[3:5],
		`"namespace": "vmgrace-bench"`, fmt.Sprintf(`"namespace": %q`, f.space(name))).Replace(f.manifest)
	answer, err := f.call(http.MethodPost, vmiPath(f.space(name), ""), text)
	if err != nil {
		return "", err
	}
	var made struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	// The API server drops the status at a creation, so a second request sets it.
	var wanted struct {
		Status json.RawMessage `json:"status"`
	}
	if err := errors.Join(json.Unmarshal(answer, &made), json.Unmarshal([]byte(text), &wanted)); err != nil {
		return "", err
	}
	return made.Metadata.UID, f.ask(http.MethodPatch, vmiPath(f.space(name), name)+"/status", fmt.Sprintf(`{"status":%s}`, wanted.Status))
}

func (f *fleet) ask(method, path, body string) error {
	_, err := f.call(method, path, body)
	return err
}

// call makes a request of the API server, and returns its answer.
func (f *fleet) call(method, path, body string) ([]byte, error) {
	r, err := http.NewRequestWithContext(f.Context(), method, f.api.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := f.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %.200s", method, path, resp.Status, text)
	}
	return text, err
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

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

func podPath(namespace, name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+namespace+"/pods/"+name, "/")
}

// spaces is the number of namespaces that have the VMs of a crew: for each eviction the API
// server lists the budgets of the whole namespace.
const spaces = 100

// crew is a fleet whose VMIs have launcher pods. The API server's webhooks lead to the
// cluster-controller that runs.
type crew struct {
	*fleet
	names       []string // of the VMIs
	account     string   // the controller's kubeconfig, with the shipped rights
	port        int      // of the webhooks
	controllers string   // which run
	bound       int      // target pods
}

const crewNode = "node-crew"

// crew makes VMIs with launcher pods, on these nodes in turn.
func (b *bench) crew(nodes []string, vmis int) *crew {
	b.Helper()
	c := &crew{fleet: b.fleet(), controllers: "*,-migration"}
	c.api.Kubectl(b, "apply", "-k", "deploy/controller")
	c.account = c.api.ServiceAccount(b, "vmgrace-system", "cluster-controller").Kubeconfig
	var err error
	c.port, err = node.FreePort()
	b.must(err)
	hooks, err := os.ReadFile("deploy/controller/webhooks.yaml")
	b.must(err)
	text := regexp.MustCompile(`service: \{name: [^,]+, namespace: [^,]+,(?: path: ([^,]+),)? port: 443\}`).ReplaceAllString(string(hooks), fmt.Sprintf("url: https://localhost:%d$1", c.port))
	c.api.Kubectl(b, "delete", "-f", "deploy/controller/webhooks.yaml")
	c.spread()
	c.nodes(nodes)
	c.fillAll(nodes, vmis, func(node, vmi, uid string) error { return c.pod(launcherOf(vmi), node, vmi, uid) })
	for n := range vmis {
		c.names = append(c.names, fmt.Sprintf("vm-%05d", n))
	}
	c.api.KubectlApply(b, text)
	return c
}

// spread makes the namespaces among which the VMs are distributed.
func (c *crew) spread() {
	c.Helper()
	var text strings.Builder
	c.spaces = nil
	for n := range spaces {
		name := fmt.Sprintf("%s-%02d", benchNamespace, n)
		c.spaces = append(c.spaces, name)
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name)
	}
	c.api.KubectlApply(c, text.String())
}

// nodes makes nodes that are ready and do not have the taint of a new one.
func (c *crew) nodes(names []string) {
	c.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for _, name := range names {
		group.Go(func() error {
			err := c.ask(http.MethodPost, "/api/v1/nodes", fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, name))
			if err != nil {
				return err
			}
			if err := c.ask(http.MethodPatch, "/api/v1/nodes/"+name, `{"spec":{"taints":null}}`); err != nil {
				return err
			}
			return c.ask(http.MethodPatch, "/api/v1/nodes/"+name+"/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
		})
	}
	c.must(group.Wait())
}

func launcherOf(vmi string) string { return "virt-launcher-" + vmi }

func (c *crew) pod(name, node, vmi, uid string) error {
	err := c.ask(http.MethodPost, podPath(c.space(vmi), ""), fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,
		"labels":{"kubevirt.io":"virt-launcher","kubevirt.io/created-by":%q,"vm.kubevirt.io/name":%q},"annotations":{"kubevirt.io/domain":%q}},
		"spec":{"nodeName":%q,"terminationGracePeriodSeconds":210,"containers":[{"name":"compute","image":"none",
		"command":["/usr/bin/virt-launcher-monitor","--qemu-timeout","300s","--name",%q,"--uid",%q],
		"resources":{"requests":{"cpu":"200m","memory":"4Gi"},"limits":{"memory":"5Gi"}}}]}}`, name, uid, vmi, vmi, node, vmi, uid))
	if err != nil {
		return err
	}
	return c.ask(http.MethodPatch, podPath(c.space(vmi), name)+"/status",
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"podIP":"10.128.7.9"}}`)
}

// start starts a controller and returns it with the seconds until it is ready.
func (c *crew) start() (p *node.Process, ready float64) {
	c.Helper()
	begin := time.Now()
	p = c.replica(c.port)
	ready = time.Since(begin).Seconds()
	node.Eventually(c, time.Minute, func() bool { return leads(p) }, "its controllers run")
	return p, ready
}

func leads(p *node.Process) bool { return strings.Contains(p.Log(), "acquired lease") }

// replica starts a controller, which may not lead, and waits until it is ready.
func (c *crew) replica(port int) *node.Process {
	c.Helper()
	health, err := node.FreePort()
	c.must(err)
	cmd := exec.Command(filepath.Join(c.bin, "cluster-controller"), "--kubeconfig="+c.account, "--controllers="+c.controllers, fmt.Sprintf("--webhook-port=%d", port),
		"--metrics-address=", fmt.Sprintf("--health-address=127.0.0.1:%d", health), "--log-format=json")
	p, err := node.StartProcess(cmd, filepath.Join(c.temp(), "log"))
	c.must(err)
	c.Cleanup(p.Kill)
	node.Eventually(c, 2*time.Minute, func() bool { return answers(fmt.Sprintf("http://127.0.0.1:%d/readyz", health)) }, "the controller becomes ready")
	return p
}

// stop ends a controller as a rollout does. The next one need not wait for its lease.
func (c *crew) stop(p *node.Process) {
	c.Helper()
	c.must(p.Signal(unix.SIGTERM))
	if _, ended := p.Exited(leaves); !ended {
		c.Fatalf("the controller does not end within %v", leaves)
	}
}

const leaves = 15 * time.Second

func answers(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// counted matches the API server's counters for the resources that the controller requests.
var counted = regexp.MustCompile(`^apiserver_request_total\{.*resource="(virtualmachineinstance.*|kubevirts|evacuationpolicies|pods|nodes|poddisruptionbudgets|events|secrets|customresourcedefinitions|.*webhookconfigurations)".* ([0-9.e+]+)$`)

// requests returns how many such requests the API server has answered. It leaves out
// watches, and evictions, which the bench sends itself.
func (c *crew) requests() float64 {
	c.Helper()
	sum := 0.0
	for line := range strings.Lines(c.api.Kubectl(c, "get", "--raw", "/metrics")) {
		found := counted.FindStringSubmatch(strings.TrimSpace(line))
		if found == nil || strings.Contains(line, `verb="WATCH"`) || strings.Contains(line, `subresource="eviction"`) {
			continue
		}
		n, err := strconv.ParseFloat(found[2], 64)
		c.must(err)
		sum += n
	}
	return sum
}

// rest waits until the number of requests no longer grows.
func (c *crew) rest() {
	c.Helper()
	before := -1.0
	node.Eventually(c, 15*time.Minute, func() bool {
		now := c.requests()
		same := now == before
		before = now
		if !same {
			c.pause(2 * time.Second)
		}
		return same
	}, "the controller comes to rest")
}

var evictionAnswers = regexp.MustCompile(`(?m)^apiserver_request_total\{code="(\d+)".*subresource="eviction".* ([0-9.e+]+)$`)

// evictions returns how many evictions the API server has answered with each code.
func (c *crew) evictions() map[string]float64 {
	c.Helper()
	all := map[string]float64{}
	for _, found := range evictionAnswers.FindAllStringSubmatch(c.api.Kubectl(c, "get", "--raw", "/metrics"), -1) {
		n, err := strconv.ParseFloat(found[2], 64)
		c.must(err)
		all[found[1]] += n
	}
	return all
}

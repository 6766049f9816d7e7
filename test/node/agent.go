package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"os"

	"golang.org/x/sys/unix"
)

// Agent is a node-agent with directories of its own. A test can kill it and start it again
// on the same directories.
type Agent struct {
	*Process // the latest start, nil before the first
	// LaunchersDir, KubeletDir, StateDir and Address (host:port) are the values of its
	// flags.
	LaunchersDir, KubeletDir, StateDir, Address string
	// Path is the program. Env is added to its environment. Changes take effect at the next
	// start.
	Path string
	Env  []string

	node *Node
	args []string
	log  string
}

// Agent prepares a node-agent in standalone mode. args come after the flags for its
// directories and may override them.
func (n *Node) Agent(t T, args ...string) *Agent {
	t.Helper()
	a := n.agent(t)
	a.args = append(a.flags("--standalone", "--launchers-dir", a.LaunchersDir), args...)
	return a
}

// ClusterAgent prepares the node-agent of a cluster's node with this name.
func (n *Node) ClusterAgent(t T, kubeconfig, name string, args ...string) *Agent {
	t.Helper()
	a := n.agent(t)
	a.args = append(a.flags("--kubeconfig", kubeconfig, "--node-name", name, "--kubelet-dir", a.KubeletDir), args...)
	return a
}

func (a *Agent) flags(more ...string) []string {
	return append([]string{"--state-dir", a.StateDir, "--metrics-address", a.Address}, more...)
}

func (n *Node) agent(t T) *Agent {
	t.Helper()
	dir, err := os.MkdirTemp(n.Dir, "agent-")
	if err != nil {
		t.Fatalf("agent's directory: %v", err)
	}
	port, err := FreePort()
	if err != nil {
		t.Fatalf("%v", err)
	}
	a := &Agent{
		LaunchersDir: filepath.Join(dir, "launchers"), KubeletDir: filepath.Join(dir, "kubelet"), StateDir: filepath.Join(dir, "state"),
		Address: "127.0.0.1:" + strconv.Itoa(port),
		Path:    Binary(t, "node-agent"),
		node:    n, log: filepath.Join(dir, "log"),
	}
	for _, d := range []string{a.LaunchersDir, filepath.Join(a.KubeletDir, "pods"), a.StateDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatalf("agent's directory: %v", err)
		}
	}
	t.Cleanup(func() {
		if a.Process == nil {
			return
		}
		a.Kill()
		if t.Failed() {
			t.Logf("node-agent said:\n%s", a.Log())
		}
		a.wantNoRace(t)
	})
	return a
}

// Launch starts the agent and does not wait.
func (a *Agent) Launch(t T) *Agent {
	t.Helper()
	cmd := a.node.Command(a.Path, a.args...)
	cmd.Env = append(append(cmd.Env, goRace), a.Env...)
	p, err := StartProcess(cmd, a.log)
	if err != nil {
		t.Fatalf("%v", err)
	}
	a.Process = p
	return a
}

// Start starts the agent and waits until it is ready.
func (a *Agent) Start(t T) *Agent {
	t.Helper()
	a.Launch(t)
	Eventually(t, waitTimeout, func() bool { return a.Ready() || !a.Running() }, "the agent is ready")
	if !a.Running() {
		t.Fatalf("the agent ended while it started:\n%s", a.Log())
	}
	return a
}

// Restart kills the agent with SIGKILL and starts it again.
func (a *Agent) Restart(t T) {
	t.Helper()
	a.Kill()
	a.Start(t)
}

// Term sends SIGTERM and returns the exit status and how long the end took.
func (a *Agent) Term(t T) (code int, took time.Duration) {
	t.Helper()
	begin := time.Now()
	if err := a.Signal(unix.SIGTERM); err != nil {
		t.Fatalf("SIGTERM to the agent: %v", err)
	}
	code, ok := a.Exited(waitTimeout)
	if !ok {
		t.Fatalf("the agent does not end on SIGTERM:\n%s", a.Log())
	}
	return code, time.Since(begin)
}

// Ready reports whether /readyz says that the agent is ready.
func (a *Agent) Ready() bool {
	code, _, err := a.Get(context.Background(), "/readyz")
	return err == nil && code == http.StatusOK
}

// Get fetches a path of the agent's HTTP server.
func (a *Agent) Get(ctx context.Context, path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.Address+path, nil)
	if err != nil {
		return 0, "", err
	}
	// A connection that stays open would leave a goroutine behind.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Said returns how often the log contains a text.
func (a *Agent) Said(text string) int { return strings.Count(a.Log(), text) }

// WaitSaid waits until the log contains a text that many times.
func (a *Agent) WaitSaid(t T, text string, times int) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool { return a.Said(text) >= times }, "the log says %q, %d times", text, times)
}

// Metrics returns every sample of /metrics. The key is the sample's text with its labels:
// `vmgrace_destroys_total{via="signal"}`.
func (a *Agent) Metrics(t T) map[string]float64 {
	t.Helper()
	code, body, err := a.Get(t.Context(), "/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("/metrics: status %d, %v", code, err)
	}
	return parseMetrics(body)
}

func parseMetrics(text string) map[string]float64 {
	samples := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		cut := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || cut < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(line[cut+1:], 64); err == nil {
			samples[line[:cut]] = v
		}
	}
	return samples
}

// VMStatus is one VM in the output of `node-agent status -o json`.
type VMStatus struct {
	Namespace          string   `json:"namespace"`
	Name               string   `json:"name"`
	UID                string   `json:"uid"`
	Domain             string   `json:"domain"`
	GracePeriodSeconds int64    `json:"gracePeriodSeconds"`
	Phase              string   `json:"phase"`
	Cause              string   `json:"cause"`
	StartedAt          string   `json:"startedAt"`
	Deadline           string   `json:"deadline"`
	RemainingSeconds   *float64 `json:"remainingSeconds"`
}

// Status returns what `node-agent status` says about this agent's state directory.
func (a *Agent) Status(t T) []VMStatus {
	t.Helper()
	out, err := a.node.Command(a.Path, "status", "--state-dir", a.StateDir, "-o", "json").Output()
	if err != nil {
		t.Fatalf("node-agent status: %v%s", err, stderr(err))
	}
	var vms []VMStatus
	if err := json.Unmarshal(out, &vms); err != nil {
		t.Fatalf("node-agent status: %v in %q", err, out)
	}
	return vms
}

// StatusOf returns the status of one guest. ok is false where it has no record.
func (a *Agent) StatusOf(t T, g *Guest) (vm VMStatus, ok bool) {
	t.Helper()
	for _, vm := range a.Status(t) {
		if vm.Domain == g.Domain {
			return vm, true
		}
	}
	return vm, false
}

// FreePort finds a TCP port of 127.0.0.1 that nobody listens on. By default the kernel gives
// none of this range to connections (ip_local_port_range), which could take it before a program
// listens on it.
func FreePort() (port int, err error) {
	for range maxTries {
		var l net.Listener
		port = 20_000 + rand.IntN(10_000)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("free port: %w", err)
}

// maxTries bounds the search for a free port.
const maxTries = 100

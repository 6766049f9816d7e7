//go:build guest

package inside

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

const (
	agentPod  = "0a000000-0000-4000-8000-00000000000a"
	id        = "1f00000000000000000000000000000000000000000000000000000000000001"
	address   = "127.0.0.1:9469"
	rejection = `vmgrace_rejected_total{reason="vm_process"} `
)

func TestThisKernelHasCgroupsOfVersion2Only(t *testing.T) {
	if got := read(t, "/proc/self/cgroup"); got != "0::/" {
		t.Fatalf("/proc/self/cgroup: %q", got)
	}
}

// Given an agent and VMs in their pods' cgroups, as kubelet makes them with each of its drivers. When a launcher
// is signalled, then its VM is ended at its deadline and not before, by a thread with real-time priority. What runs in the
// cgroup of another pod is no VM of that launcher.
func TestAVMInItsPodIsEndedAtItsDeadline(t *testing.T) {
	for driver, private := range map[string]bool{"systemd": true, "cgroupfs": false} {
		t.Run(driver, func(t *testing.T) {
			agent, kubelet := start(t, driver, private)
			prioritized(t, agent)
			pods := identities(t)
			mine, liar := pods[driver], pods[driver+"-liar"]
			other := kit.PodCgroups(mine.pod, id)[driver]
			stranger, strange := launch(t, kubelet, liar, container(t, other))
			kit.Eventually(t, "the process of another pod is rejected", func() bool { return strings.Contains(metrics(), rejection) })

			rejected := metrics()
			shim, dir := launch(t, kubelet, mine, container(t, other))
			kit.Eventually(t, "the VM is guarded", func() bool { return status(dir).Phase == "Running" })
			kit.Must(t, shim.Signal(syscall.SIGTERM))
			kit.Eventually(t, "it has stopped", func() bool { return status(dir).Phase == "Stopped" })
			end := status(dir)
			if end.Outcome != "Forced" || end.Deadline.Sub(end.StartedAt) != 4*time.Second || end.EndedAt.Before(end.Deadline) {
				t.Errorf("status.json: %+v", end)
			}
			if count(metrics()) < count(rejected) || status(strange).Phase == "Running" {
				t.Errorf("the stranger: %+v", status(strange))
			}
			if err := stranger.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the stranger has ended: %v", err)
			}
		})
	}
}

// enter starts a program as a runtime starts a container.
func enter(t *testing.T, cgroup string, private bool, attr *syscall.SysProcAttr, command ...string) *os.Process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", command...)
	cmd.Env = append(os.Environ(), inCgroup+"="+cgroup)
	if private {
		cmd.Env = append(cmd.Env, ownCgroups+"=yes")
	}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attr
	kit.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process
}

// start starts an agent in a pod's cgroup and returns the directory that it takes for kubelet's.
func start(t *testing.T, driver string, private bool) (agent *os.Process, kubelet string) {
	t.Helper()
	dir := t.TempDir()
	kubelet = filepath.Join(dir, "kubelet")
	kit.Must(t, os.MkdirAll(filepath.Join(kubelet, "pods"), 0o755))
	cgroup := kit.PodCgroups(agentPod, id)[driver]
	agent = enter(t, container(t, cgroup), private, nil, "/bin/node-agent", "--libvirt-uri=", "--dbus-socket=", "--kubeconfig=/kubeconfig", "--node-name=guest",
		"--kubelet-dir="+kubelet, "--state-dir="+filepath.Join(dir, "state"), "--metrics-address="+address)
	kit.Eventually(t, "the agent is ready", func() bool { return get("/readyz") == "ok" })
	if got := read(t, fmt.Sprintf("/proc/%d/cgroup", agent.Pid)); got != "0::/"+cgroup {
		t.Errorf("the agent is in %q", got)
	}
	return agent, kubelet
}

// launch starts a launcher whose VM is a plain process that cannot be asked.
func launch(t *testing.T, kubelet string, v identity, cgroup string) (shim *os.Process, dir string) {
	t.Helper()
	dir = filepath.Join(kubelet, "pods", v.pod, "volumes", "kubernetes.io~empty-dir", "vmgrace")
	kit.Must(t, os.MkdirAll(dir, 0o755))
	return enter(t, cgroup, true, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, "/bin/launcher-shim",
		"--namespace=default", "--name="+v.name, "--uid="+v.uid, "--launcher-dir="+dir, "--ask-with=exec:/bin/false", "--", "/bin/sleep", "600"), dir
}

// prioritized checks that the agent's deadline thread is a real-time one.
func prioritized(t *testing.T, agent *os.Process) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", agent.Pid))
	kit.Must(t, err)
	found := 0
	for _, task := range tasks {
		if name, err := os.ReadFile(filepath.Join(task, "comm")); err != nil || strings.TrimSpace(string(name)) != "deadline" {
			continue // or it has ended
		}
		tid, err := strconv.Atoi(filepath.Base(task))
		kit.Must(t, err)
		attr, err := unix.SchedGetAttr(tid, 0)
		kit.Must(t, err)
		if attr.Policy != unix.SCHED_RR {
			t.Errorf("the deadline thread has policy %d", attr.Policy)
		}
		found++
	}
	if found != 1 {
		t.Errorf("%d deadline threads", found)
	}
}

// identity is that of a VM: name and UID of its VMI, UID of its pod.
type identity struct{ name, uid, pod string }

func identities(t *testing.T) map[string]identity {
	t.Helper()
	all := map[string]identity{}
	for line := range strings.Lines(read(t, "/vms")) {
		f := strings.Fields(line)
		all[f[0]] = identity{f[0], f[1], f[2]}
	}
	return all
}

// report is what is read of status.json.
type report struct {
	Phase, Outcome               string
	StartedAt, Deadline, EndedAt time.Time
}

func status(dir string) (is report) {
	text, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if err == nil {
		_ = json.Unmarshal(text, &is) // what does not fit is not reported
	}
	return is
}

func metrics() string { return get("/metrics") }

// count returns how many processes were rejected.
func count(metrics string) int {
	_, rest, _ := strings.Cut(metrics, rejection)
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(line)
	return n
}

// get returns what the agent answers, and "" while it does not.
func get(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return strings.TrimSpace(string(text))
}

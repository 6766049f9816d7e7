//go:build !unit

package drains

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// requests counts the requests of a program from an offset in the audit log on. It also
// returns the size of the log.
func requests(t *testing.T, from int64, program string) (n int, size int64) {
	t.Helper()
	text, err := os.ReadFile(shared.audit)
	kit.Must(t, err)
	for line := range strings.Lines(string(text[from:])) {
		var e struct{ UserAgent string }
		kit.Must(t, json.Unmarshal([]byte(line), &e))
		if strings.HasPrefix(e.UserAgent, program) {
			n++
		}
	}
	return n, int64(len(text))
}

// Given a node with 100 pods and a VM that moves. When vmdrain drains the node, then it
// makes at most 150 requests and ends within 4 s of the end of the VM's pod. Otherwise a
// drain would load the API server and keep an operator waiting. With VMGRACE_BESIDE=kubectl
// the test measures kubectl drain too, which takes half a minute.
func TestADrainOfManyPodsAsksLittleAndEndsSoon(t *testing.T) {
	const pods = 100
	took, asked := map[string]time.Duration{}, map[string]int{}
	commands := map[string][]string{"kubectl-vmdrain": {shared.Binary, "--force"}}
	if os.Getenv("VMGRACE_BESIDE") == "kubectl" {
		commands["kubectl/"] = []string{"kubectl", "drain", "--force"}
	}
	for program, command := range commands {
		on := newNode(t)
		var all []*corev1.Pod
		for i := range pods {
			all = append(all, newPod(t, on, fmt.Sprint("p-", i), nil))
		}
		_, vm := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
		cmd := shared.Command(t.Context(), append(command[1:], on)...)
		if command[0] != "kubectl" {
			cmd = exec.Command(command[0], append(command[1:], on)...)
		}
		cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig, "GORACE=atexit_sleep_ms=0 exitcode=66")
		_, from := requests(t, 0, program)
		p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), "log"))
		kit.Must(t, err)
		t.Cleanup(p.Kill)
		for _, pod := range all { // the test plays their kubelet
			terminating(t, pod)
			end(t, pod)
		}
		gone, waits := ": Drained", ": Moving"
		if command[0] == "kubectl" {
			gone, waits = " evicted", "will retry"
		}
		eventually(t, "it waits for the VM alone", func() bool { return strings.Contains(p.Log(), waits) && strings.Count(p.Log(), gone) == pods })
		at := time.Now()
		end(t, vm)
		status, ended := p.Exited(soon)
		took[program] = time.Since(at)
		if status != 0 || !ended {
			t.Fatalf("%s: exit status %d, ended %v:\n%s", program, status, ended, p.Log())
		}
		asked[program], _ = requests(t, from, program)
		kit.Must(t, shared.DeleteAllOf(t.Context(), &policyv1.PodDisruptionBudget{}, client.InNamespace("default")))
	}
	t.Logf("after the VM's arrival it ends in %v; requests for %d pods and a VM: %v", took, pods, asked)
	if asked["kubectl-vmdrain"] > pods+50 {
		t.Errorf("%v requests for %d pods", asked, pods)
	}
	if took["kubectl-vmdrain"] > 4*time.Second { // kubectl drain would not have tried again yet
		t.Errorf("%v", took)
	}
}

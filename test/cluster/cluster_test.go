package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// victim is set in the environment of a process that the test starts and kills.
const victim = "VMGRACE_TEST_VICTIM"

var shared *cluster.API

func TestMain(m *testing.M) {
	if os.Getenv(victim) == "" {
		os.Exit(cluster.Main(func(a *cluster.API) int {
			shared = a
			return m.Run()
		}))
	}
	a, err := cluster.StartAPI(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(a.Dir)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestKilledProcessTakesItsServersAlongAndTheNextOneClears(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victim+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(line)
	if servers(t, dir) != 2 {
		t.Fatalf("the victim says %q and has %d servers", line, servers(t, dir))
	}

	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed

	node.Eventually(t, 10*time.Second, func() bool { return servers(t, dir) == 0 }, "etcd and kube-apiserver of %s are gone", dir)
	cluster.NewAPI(t)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left over: %v", dir, err)
	}
}

// servers counts the etcd and kube-apiserver processes with files in dir.
func servers(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		line, _ := os.ReadFile(file) // it may have ended
		if bytes.Contains(line, []byte("="+dir+"/")) {
			n++
		}
	}
	return n
}

const someNodes = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: one}}
- {apiVersion: v1, kind: Node, metadata: {name: two}}
- {apiVersion: v1, kind: Node, metadata: {name: control-plane}, spec: {taints: [{key: control-plane, effect: NoSchedule}]}}
`

func TestForeignClusterIsUsedAndLeftAlone(t *testing.T) {
	a := shared
	a.KubectlApply(t, someNodes)
	// A new node is not ready and has a taint that says so, until its kubelet reports that
	// it is ready. These nodes have no kubelet.
	a.Kubectl(t, "taint", "nodes", "one", "two", "node.kubernetes.io/not-ready-")
	t.Setenv("KUBECONFIG", a.Kubeconfig)
	t.Setenv("E2E_NODE_EXEC", "env ON={node} sh -c")

	c, err := cluster.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	names := make([]string, 0, 2)
	for _, n := range c.Nodes {
		names = append(names, n.Name+" "+n.Run(t, `echo "on $ON"`))
	}
	if got := strings.Join(names, ", "); got != "one on one, two on two" {
		t.Errorf("the nodes are %s", got)
	}
	if _, err := c.API(); !errors.Is(err, cluster.ErrForeign) || c.Own() {
		t.Errorf("its API server can be had: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if !a.Ready(t.Context()) {
		t.Error("it does not outlive Close")
	}
}

func TestForeignClusterWithoutAWayToItsNodesIsRefused(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	t.Setenv("E2E_NODE_EXEC", "")

	_, err := cluster.Start(t.Context())

	if err == nil || !strings.Contains(err.Error(), "E2E_NODE_EXEC") {
		t.Errorf("the error is %v", err)
	}
}

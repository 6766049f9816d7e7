//go:build !unit

// Package rig helps tests that run one of the project's programs against a real API server.
// It builds the program with the race detector, applies the shipped manifests, has a client
// that knows the project's types, and makes and reads objects. No kubelet and no scheduler
// runs: the tests play them.
//
// Like test/node, the package does not import testing.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// Ours is the namespace of the manifests.
const Ours = "vmgrace-system"

// T is the part of *testing.T that this package uses. Fatalf must not return.
type T interface {
	node.T
	Errorf(format string, args ...any)
	TempDir() string
}

// Rig is an API server and a program. Both embedded clients have the rights of cluster-admin.
type Rig struct {
	*cluster.API
	client.Client

	// Config is the configuration of Client.
	Config *rest.Config
	// Binary is the path of the program.
	Binary string
	// Never holds words that fail a test if the program logs one of them.
	Never []string
}

// Start builds a program of cmd, installs the CRDs, runs the commands with kubectl and
// waits until all CRDs are established.
func Start(a *cluster.API, program string, commands ...string) (*Rig, error) {
	binary := filepath.Join(a.Dir, program)
	if out, err := exec.Command("go", "build", "-race", "-o", binary, "../../cmd/"+program).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	commands = append([]string{"apply -k ../../deploy/crds"}, commands...)
	for _, c := range append(commands, "wait --for=condition=Established crd --all --timeout=30s") {
		if _, err := a.TryKubectl(context.Background(), "", strings.Fields(c)...); err != nil {
			return nil, err
		}
	}
	return New(a, binary)
}

// New returns a Rig for an API server and a program that exist already.
func New(a *cluster.API, binary string) (*Rig, error) {
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: known})
	return &Rig{API: a, Client: c, Config: config, Binary: binary, Never: []string{"DATA RACE"}}, err
}

// Main runs the tests after start and returns the exit status. If start fails, it prints
// why the tests do not run. TestMain calls it within cluster.Main.
func Main(m interface{ Run() int }, a *cluster.API, start func(*cluster.API) error) int {
	if err := start(a); err != nil {
		fmt.Fprintln(os.Stderr, "NOT RUN:", err)
		return 1
	}
	return m.Run()
}

// Audited calls run with flags with which a kube-apiserver writes its audit log to file.
// The argument policy is the audit policy as JSON, without kind and braces.
func Audited(policy string, run func(file string, flags ...string) int) int {
	dir, err := os.MkdirTemp("", "vmgrace-audit-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = os.WriteFile(filepath.Join(dir, "policy"), []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy",`+policy+`}`), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "NOT RUN:", err)
		return 1
	}
	file := filepath.Join(dir, "audit.log")
	return run(file, "--audit-policy-file="+filepath.Join(dir, "policy"), "--audit-log-path="+file)
}

// Begin starts the program, which ends with the test. A failed test shows the program's log.
func (r *Rig) Begin(t T, args ...string) *node.Process {
	t.Helper()
	cmd := exec.Command(r.Binary, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), "log"))
	kit.Must(t, err)
	t.Cleanup(func() {
		p.Kill()
		log, wrong := p.Log(), t.Failed()
		for _, words := range r.Never {
			wrong = wrong || strings.Contains(log, words)
		}
		if wrong {
			t.Errorf("%s said:\n%s", filepath.Base(r.Binary), log[max(0, len(log)-8000):])
		}
	})
	return p
}

// FreePorts returns n different free ports of 127.0.0.1, as node.FreePort finds them.
func FreePorts(t T, n int) (ports []string) {
	t.Helper()
	for len(ports) < n {
		port, err := node.FreePort()
		kit.Must(t, err)
		if text := strconv.Itoa(port); !slices.Contains(ports, text) {
			ports = append(ports, text)
		}
	}
	return ports
}

// Fetch returns what a server answers, or the text of the error.
func Fetch(url string) string {
	res, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return string(text)
}

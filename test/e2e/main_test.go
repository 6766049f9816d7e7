package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

const (
	agents    = "vmgrace-system"
	namespace = "vmgrace-e2e"
	crd       = "crd/virtualmachineinstances.kubevirt.io"
	crdsRun   = "../../deploy/crds/run"

	soon = 30 * time.Second // bounds waits without a promised time, on a busy machine
	ms   = time.Millisecond
)

// shared is the cluster that all tests use. Each test restores what it changes.
var shared suite

type suite struct {
	*cluster.Cluster
	a, b    *cluster.Node
	objects *objects.Reader
	late    *node.Lateness // of this machine, since the start of the run
	// rightless holds the periods in which a test had removed the agents' rights.
	rightless []window
	// unsettled holds the periods in which the agents' rights may not have been in force:
	// the API server was starting, or a test deleted the agents with their rights and
	// applied both again.
	unsettled []window
	found     []string // the applied objects that existed before the run
	// buildVMDrain builds kubectl-vmdrain once and returns its path.
	buildVMDrain func() (string, error)
}

type window struct{ from, to time.Time }

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	shared.late = node.StartLateness()
	err := shared.start(ctx)
	status := 1
	if err == nil {
		status = m.Run()
	}
	if err = errors.Join(err, shared.end()); err != nil {
		fmt.Fprintln(os.Stderr, "NOT RUN or not ended:", err)
		status = 1
	}
	shared.late.Close()
	stop()
	os.Exit(status)
}

func (s *suite) start(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"a cluster of two nodes", s.startCluster},
		{"the images on both nodes", s.importImages},
		{"deploy/crds/run apply", s.applyCRDs},
		{"kubectl apply -k deploy/daemonset, and its pods ready", s.applyAgents},
		{"a namespace for restricted pods", s.makeNamespace},
	} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(begin).Seconds(), step.name)
	}
	return nil
}

func (s *suite) startCluster(ctx context.Context) (err error) {
	if s.Cluster, err = cluster.Start(ctx); err != nil {
		return err
	}
	s.a, s.b = s.Nodes[0], s.Nodes[1]
	s.buildVMDrain = sync.OnceValues(func() (string, error) {
		program := filepath.Join(s.Dir(), "kubectl-vmdrain")
		if out, err := exec.Command("go", "build", "-o", program, "../../cmd/kubectl-vmdrain").CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return program, nil
	})
	if s.objects, err = objects.New(s.Kubeconfig); err != nil {
		return err
	}
	for _, object := range []string{crd, "namespace/" + agents} {
		if s.there(ctx, object) {
			s.found = append(s.found, object)
		}
	}
	return nil
}

func (s *suite) importImages(ctx context.Context) error {
	return s.ImportImages(ctx, "node-agent", "launcher-shim", "cluster-controller", "vm-example")
}

// applyCRDs applies deploy/crds/run, unless the cluster already has KubeVirt's CRDs.
func (s *suite) applyCRDs(ctx context.Context) error {
	if s.there(ctx, crd) {
		return nil
	}
	_, err := s.Script(ctx, crdsRun, "apply")
	return err
}

// applyAgents applies deploy/daemonset.
func (s *suite) applyAgents(ctx context.Context) error { return s.applyAgentsOf(ctx, "../../deploy") }

// applyAgentsOf applies the directory daemonset of manifests. It also allows the files of a node
// that a migrated guest of the tests names on its target.
func (s *suite) applyAgentsOf(ctx context.Context, manifests string) error {
	text, err := s.TryKubectl(ctx, "", "kustomize", filepath.Join(manifests, "daemonset"))
	if err != nil {
		return err
	}
	const listen = "- --migration-listen=:9470\n"
	at := strings.Index(text, listen)
	if at < 0 {
		return fmt.Errorf("%s/daemonset: no --migration-listen", manifests)
	}
	indent := text[strings.LastIndex(text[:at], "\n")+1 : at]
	text = text[:at] + listen + indent + "- --migration-allow-paths=" + allowed() + "\n" + text[at+len(listen):]
	if _, err := s.TryKubectl(ctx, text, "apply", "-f", "-"); err != nil {
		return err
	}
	return s.agentsReady(ctx)
}

// allowed returns the files of a node that a guest of the tests names: its kernel, its console
// and its disk.
func allowed() string { return "/var/lib/libvirt,/var/tmp," + node.CacheDir() }

// agentsReady waits until an agent is ready on each node. It makes hard links to the
// agents' logs, because kubelet removes the logs with the pods.
func (s *suite) agentsReady(ctx context.Context) error {
	if err := s.kubectl(ctx, "rollout", "status", "-n", agents, "ds/node-agent", "--timeout=90s"); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		// kubectl rollout status may not have noticed yet that an agent's pod was deleted.
		const keep = `mkdir -p /var/log/vmgrace-e2e; logs='/var/log/pods/` + agents + `_node-agent-*/node-agent/*.log'
			for try in $(seq 300); do ls $logs >/dev/null 2>&1 && break; sleep 0.1; done
			for log in $logs; do ln -f "$log" "/var/log/vmgrace-e2e/$(echo "$log" | tr / _)"; done`
		if _, err := n.TryRun(ctx, nil, keep); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) makeNamespace(ctx context.Context) error {
	const restricted = `
apiVersion: v1
kind: Namespace
metadata:
  name: ` + namespace + `
  labels: {pod-security.kubernetes.io/enforce: restricted}
`
	_, err := s.TryKubectl(ctx, restricted, "apply", "-f", "-")
	return err
}

func (s *suite) there(ctx context.Context, object string) bool {
	return s.kubectl(ctx, "get", object) == nil
}

func (s *suite) kubectl(ctx context.Context, args ...string) error {
	_, err := s.TryKubectl(ctx, "", args...)
	return err
}

// end closes the suite's own cluster. From another cluster it removes what was not there
// before the run.
func (s *suite) end() error {
	if s.Cluster == nil {
		return nil
	}
	if s.Own() {
		return s.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	errs := []error{s.kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found")}
	if !slices.Contains(s.found, "namespace/"+agents) {
		errs = append(errs, s.kubectl(ctx, "delete", "-k", "../../deploy/daemonset", "--ignore-not-found"))
	}
	if !slices.Contains(s.found, crd) {
		_, err := s.Script(ctx, crdsRun, "delete")
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.Close())...)
}

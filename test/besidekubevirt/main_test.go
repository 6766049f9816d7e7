package besidekubevirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/objects"
)

const (
	namespace = "vms"
	theirs    = "kubevirt"
	ours      = "vmgrace-system"
	product   = "../../deploy/beside-kubevirt"
)

// shared is the cluster that all tests use. Each test restores what it changes.
var shared suite

type suite struct {
	*cluster.Cluster
	a, b    *cluster.Node
	objects *objects.Reader
	// install installs vmgrace, once.
	install func() error
}

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := shared.start(ctx)
	status := 1
	if err == nil {
		status = m.Run()
	}
	if shared.Cluster != nil {
		err = errors.Join(err, shared.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "NOT RUN or not ended:", err)
		status = 1
	}
	stop()
	os.Exit(status)
}

func (s *suite) start(ctx context.Context) error {
	s.install = sync.OnceValue(func() error { return s.step(ctx, "kubectl apply -k "+product, s.applyProduct) })
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"a cluster of two nodes", s.startCluster},
		{"the images on both nodes", s.importImages},
		{"the stand-in for KubeVirt", s.applyStandIn},
	} {
		if err := s.step(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) step(ctx context.Context, name string, do func(context.Context) error) error {
	begin := time.Now()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(begin).Seconds(), name)
	return nil
}

func (s *suite) startCluster(ctx context.Context) (err error) {
	if s.Cluster, err = cluster.Start(ctx); err != nil {
		return err
	}
	if !s.Own() {
		return errors.New("the stand-in would take KubeVirt's place in the cluster that KUBECONFIG names")
	}
	s.a, s.b = s.Nodes[0], s.Nodes[1]
	s.objects, err = objects.New(s.Kubeconfig)
	return err
}

func (s *suite) importImages(ctx context.Context) error {
	return s.ImportImages(ctx, "node-agent", "cluster-controller", "vm-example")
}

// applyStandIn builds the stand-in, where the nodes find it, and applies it. The namespace
// for VMs allows what KubeVirt's launchers need, and no more.
func (s *suite) applyStandIn(ctx context.Context) error {
	program := filepath.Join(s.Dir(), "standin", "standin")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "../kubevirt/standin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	image, err := launcherImage()
	if err != nil {
		return err
	}
	text, err := os.ReadFile("../kubevirt/standin.yaml")
	if err != nil {
		return err
	}
	manifest := strings.NewReplacer("PROGRAM", filepath.Dir(program), "IMAGE]", image+"]").Replace(string(text)) + `
---
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `, labels: {pod-security.kubernetes.io/enforce: baseline}}
`
	if _, err := s.TryKubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	return s.ready(ctx, theirs, "ds/virt-handler", "deploy/virt-controller", "deploy/virt-api")
}

// launcherImage returns the image of the example VM: QEMU and a guest.
func launcherImage() (string, error) {
	text, err := os.ReadFile("../../deploy/examples/vm.yaml")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok {
			return image, nil
		}
	}
	return "", errors.New("deploy/examples/vm.yaml names no image")
}

func (s *suite) ready(ctx context.Context, namespace string, workloads ...string) error {
	for _, w := range workloads {
		if _, err := s.TryKubectl(ctx, "", "rollout", "status", "-n", namespace, w, "--timeout=90s"); err != nil {
			pods, _ := s.TryKubectl(ctx, "", "describe", "pods", "-n", namespace) // only for the message
			return fmt.Errorf("%w\n%s", err, pods)
		}
	}
	return nil
}

// applyProduct installs vmgrace as an administrator does, with both feature gates.
func (s *suite) applyProduct(ctx context.Context) error {
	if _, err := s.TryKubectl(ctx, "", "apply", "-k", product); err != nil {
		return err
	}
	if _, err := s.TryKubectl(ctx, settings, "apply", "-f", "-"); err != nil {
		return err
	}
	return s.ready(ctx, ours, "ds/node-agent", "deploy/cluster-controller")
}

const settings = `
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: ` + theirs + `}
spec: {configuration: {developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration, NoExecuteTaintEvictionLiveMigration]}}}
---
apiVersion: vmgrace.io/v1alpha1
kind: EvacuationPolicy
metadata: {name: default}
spec: {migrationAllowance: 90s}
`

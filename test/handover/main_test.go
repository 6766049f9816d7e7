//go:build !unit

// Package handover moves real guests between two nodes, each with a libvirtd and
// an agent of its own, beside a real API server. What the cluster's controller and
// kubelet do, a test does; test/e2e has the whole.
package handover

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

const soon = 30 * time.Second

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(a *node.Node) int {
		return node.Main(func(b *node.Node) int {
			return cluster.Main(func(api *cluster.API) int {
				shared = world{api: api, a: &host{Node: a, name: "node-a"}, b: &host{Node: b, name: "node-b"}}
				return m.Run()
			})
		})
	}))
}

// shared is what all tests use.
var shared world

// world is two nodes and their API server.
type world struct {
	*testing.T

	api  *cluster.API
	a, b *host
	ca   *authority
}

// host is a node with its agent.
type host struct {
	*node.Node

	name  string
	agent *node.Agent
}

// given starts both agents, and has their certificates signed.
func given(t *testing.T, args ...string) world {
	t.Helper()
	w := shared
	w.T = t
	w.api.Kubectl(w, "apply", "-k", "../../deploy/crds")
	w.api.Kubectl(w, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "crd/virtualmachineinstancemigrations.kubevirt.io", "--timeout=20s")
	w.api.KubectlApply(w, "{apiVersion: v1, kind: Namespace, metadata: {name: vmgrace-system}}")
	w.ca = newAuthority(w)
	for _, h := range []**host{&w.a, &w.b} {
		started := **h
		*h = &started
		port, err := node.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		started.agent = started.ClusterAgent(w, w.api.Kubeconfig, started.name, append([]string{
			"-v", fmt.Sprintf("--migration-listen=127.0.0.1:%d", port), "--migration-allow-paths=" + node.CacheDir() + ",/tmp",
		}, args...)...)
		started.agent.Start(w)
	}
	for _, h := range []*host{w.a, w.b} {
		h.agent.WaitSaid(w, "has a certificate for live migrations", 1)
	}
	return w
}

// authority signs the nodes' certificates, as the controller does.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(w world) *authority {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "vmgrace test"}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		w.Fatal(err)
	}
	ca := &authority{key: key}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		w.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "vmgrace-migration-ca", "namespace": "vmgrace-system"},
		"data": map[string]string{"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.api.KubectlApply(w, string(text))
	ctx, cancel := context.WithCancel(w.Context())
	var signing sync.WaitGroup
	signing.Go(func() { ca.sign(ctx, w.api) })
	w.Cleanup(func() { cancel(); signing.Wait() })
	return ca
}

// sign approves and signs what is asked for.
func (ca *authority) sign(ctx context.Context, api *cluster.API) {
	done := map[string]bool{}
	for ctx.Err() == nil {
		out, err := api.TryKubectl(ctx, "", "get", "csr", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.request} {.status.certificate}{"\n"}{end}`)
		if err == nil {
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) == 2 && !done[f[0]] {
					done[f[0]] = ca.answer(ctx, api, f[0], f[1]) == nil
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (ca *authority) answer(ctx context.Context, api *cluster.API, name, request string) error {
	text, err := base64.StdEncoding.DecodeString(request)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	cert, err := ca.certificate(asked.Subject.CommonName, asked.PublicKey)
	if err != nil {
		return err
	}
	if _, err := api.TryKubectl(ctx, "", "certificate", "approve", name); err != nil {
		return err
	}
	_, err = api.TryKubectl(ctx, "", "patch", "csr", name, "--subresource=status", "--type=merge", "-p",
		`{"status":{"certificate":"`+base64.StdEncoding.EncodeToString(cert)+`"}}`)
	return err
}

func (ca *authority) certificate(name string, public any) ([]byte, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// vm is a guest with its VMI and its launchers.
type vm struct {
	*node.VM

	w            world
	uid          string // the VMI's
	there        *node.Launcher
	thereShim    *node.Process
	sourcePod    string
	targetPod    string
	migration    string
	migrationUID string
}

// guarded boots a guest on node-a with all that belongs to it.
func (w world) guarded(s node.Spec) *vm {
	w.Helper()
	s.Namespace = "default"
	g := w.a.Boot(w, s)
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default, labels: {kubevirt.io/nodeName: node-a}}
spec: {terminationGracePeriodSeconds: 60}
`, g.Name))
	v := &vm{w: w, uid: w.get("vmi", g.Name, "{.metadata.uid}")}
	v.sourcePod = w.pod("source-"+g.Name, g.Name, v.uid, "node-a")
	l := w.a.agent.PodLauncher(w, "default", g.Name, v.uid, v.sourcePod)
	v.VM = &node.VM{Guest: g, Agent: w.a.agent, Launcher: l, Shim: l.Shim(w, "--pid-file="+l.Path("vm.pid"))}
	v.UID = v.uid
	v.WaitGuarded(w)
	return v
}

func (w world) get(kind, name, path string) string {
	w.Helper()
	return strings.TrimSpace(w.api.Kubectl(w, "get", kind, name, "-o", "jsonpath="+path))
}

// pod makes a launcher pod that is bound to a node, and returns its UID.
func (w world) pod(name, vmi, uid, on string) string {
	w.Helper()
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: default
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: %q}
  annotations: {kubevirt.io/domain: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 600
  containers: [{name: launcher, image: none}]
`, name, uid, vmi, on))
	return w.get("pod", name, "{.metadata.uid}")
}

// schedule does what the controller does, up to Scheduled.
func (v *vm) schedule(options string) {
	w := v.w
	w.Helper()
	v.targetPod = w.pod("target-"+v.Name, v.Name, v.uid, "node-b")
	v.there = w.b.agent.PodLauncher(w, "default", v.Name, v.uid, v.targetPod)
	v.thereShim = v.there.Shim(w, "--pid-file="+v.there.Path("vm.pid"))
	v.migration = "move-" + v.Name
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: %s, namespace: default, labels: {vmgrace.io/source-node: node-a, vmgrace.io/target-node: node-b}}
spec: {vmiName: %s}
`, v.migration, v.Name))
	v.migrationUID = w.get("vmim", v.migration, "{.metadata.uid}")
	v.patch(fmt.Sprintf(`{"phase":"Scheduled","migrationState":{"migrationUid":%q,"vmiUID":%q,"sourceNode":"node-a","sourcePodUID":%q,"targetNode":"node-b","targetPodUID":%q,"options":{%s}}}`,
		v.migrationUID, v.uid, v.sourcePod, v.targetPod, options))
}

func (v *vm) patch(status string) {
	v.w.Helper()
	v.w.api.Kubectl(v.w, "patch", "vmim", v.migration, "--subresource=status", "--type=merge", "-p", `{"status":`+status+`}`)
}

func (v *vm) waitState(side, want string) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool { return v.w.get("vmim", v.migration, "{.status.migrationState."+side+"}") == want },
		"%s of the migration of %s does not become %s", side, v.Name, want)
}

// state is what libvirt has written of the domain on a node.
func (h *host) state(domain string) string {
	text, err := os.ReadFile(filepath.Join(h.RunDir(), domain+".xml"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "<domstatus state='")
	state, _, _ := strings.Cut(rest, "'")
	return state
}

// watchForTwo fails the test where the guest runs on both nodes at once.
func (v *vm) watchForTwo() {
	ctx, cancel := context.WithCancel(v.w.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			// A QEMU that has ended leaves its file behind for a moment.
			if v.w.b.state(v.Domain) == "running" && v.w.a.state(v.Domain) == "running" && !v.Gone() {
				v.w.Errorf("%s runs on both nodes", v.Domain)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	v.w.Cleanup(func() { cancel(); watching.Wait() })
}

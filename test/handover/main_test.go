//go:build !unit

// Package handover migrates real guests between two nodes, each with a libvirtd and an
// agent of its own, with a real API server. The tests do what the cluster's controller and
// kubelet do. test/e2e runs the whole system.
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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

const soon = 30 * time.Second

// certified is what an agent logs when it can take part in migrations.
const certified = "has a certificate for live migrations"

func TestMain(m *testing.M) {
	if dir := os.Getenv(liarDir); dir != "" {
		os.Exit(lieIn(dir))
	}
	os.Exit(node.Main(func(a *node.Node) int {
		return node.Main(func(b *node.Node) int {
			return cluster.Main(func(api *cluster.API) int {
				reader, err := objects.New(api.Kubeconfig)
				if err != nil {
					fmt.Fprintln(os.Stderr, "NOT RUN:", err)
					return 1
				}
				shared = world{api: api, objects: reader, a: newHost(a, "node-a", "127.0.0.2"), b: newHost(b, "node-b", "127.0.0.3")}
				return m.Run()
			})
		})
	}))
}

// shared is the world that all tests use.
var shared world

// world is two nodes with their API server.
type world struct {
	testing.TB

	api     *cluster.API
	objects *objects.Reader
	a, b    *host
	ca      *authority
	kind    kind
}

// host is a node with its agent.
type host struct {
	*node.Node

	name    string
	address string // of its listeners
	agent   *node.Agent
	inside  *qemus
	// Set by linked: the links before the agent's port and the API server, and the moments of
	// migrations that its wires tell.
	toAgent, toAPI *link
	moments        *moments
}

func newHost(n *node.Node, name, address string) *host {
	return &host{Node: n, name: name, address: address, inside: &qemus{all: map[string]*qemu{}}}
}

// given starts both agents, for domains of libvirt, and waits until their certificates are
// signed.
func given(tb testing.TB, args ...string) world {
	tb.Helper()
	return givenOf(tb, libvirts{}, args...)
}

// started is given for a kind of VMs.
func started(tb testing.TB, k kind) world { tb.Helper(); return givenOf(tb, k) }

func givenOf(tb testing.TB, k kind, args ...string) world {
	tb.Helper()
	return shared.given(tb, k, args...)
}

func (w world) given(tb testing.TB, k kind, args ...string) world {
	tb.Helper()
	w.TB, w.kind = tb, k
	w.prepare()
	for _, h := range []**host{&w.a, &w.b} {
		started := **h
		*h = &started
		started.start(w, w.api.Kubeconfig, args...)
	}
	w.certified()
	return w
}

func (w *world) prepare() {
	w.Helper()
	w.api.Kubectl(w, "apply", "-k", "../../deploy/crds")
	w.api.Kubectl(w, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "crd/virtualmachineinstancemigrations.kubevirt.io", "--timeout=20s")
	w.api.KubectlApply(w, "{apiVersion: v1, kind: Namespace, metadata: {name: vmgrace-system}}")
	w.ca = newAuthority(*w)
}

// start starts the node's agent and returns the port on which it listens for other agents.
func (h *host) start(w world, kubeconfig string, args ...string) string {
	w.Helper()
	port, err := node.FreePort()
	if err != nil {
		w.Fatal(err)
	}
	flags := append([]string{
		"-v", fmt.Sprintf("--migration-listen=%s:%d", h.address, port), "--migration-allow-paths=" + node.CacheDir() + "," + os.TempDir() + ",/dev",
	}, w.kind.flags(h)...)
	h.agent = h.ClusterAgent(w, kubeconfig, h.name, append(flags, args...)...)
	h.agent.Start(w)
	return strconv.Itoa(port)
}

// certified waits until both agents can take part in migrations.
func (w world) certified() {
	w.Helper()
	for _, h := range []*host{w.a, w.b} {
		h.agent.WaitSaid(w, certified, 1)
	}
}

// authority is a CA that signs the nodes' certificates, as the controller does.
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
	signing.Go(func() { ca.sign(ctx, w.api, w.objects) })
	w.Cleanup(func() { cancel(); signing.Wait() })
	return ca
}

// sign approves and signs all certificate requests until ctx ends.
func (ca *authority) sign(ctx context.Context, api *cluster.API, reader *objects.Reader) {
	done := map[string]bool{}
	for ctx.Err() == nil {
		out, err := reader.Find(ctx, objects.Query{Kind: "csr", Path: `{range .items[*]}{.metadata.name} {.spec.request} {.status.certificate}{"\n"}{end}`})
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

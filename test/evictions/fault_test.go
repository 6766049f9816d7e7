//go:build !unit

package evictions

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given webhooks that do not answer: nobody listens, the server hangs, or its certificate
// has expired. When pods are evicted, then VMs with a budget stay, other pods and VMs
// without a budget are evicted without much delay, and no VM is marked. When a replica runs
// again, then an eviction marks its VM. Otherwise a fault of the webhooks would stop
// protected VMs or block every drain.
func TestWithoutAnAnswerNothingIsMarkedAndBudgetsHold(t *testing.T) {
	replicas(t, 1)[0].Kill() // the Secret and the caBundle stay
	for name, backend := range map[string]func(*testing.T) string{
		"nobody is there":            func(t *testing.T) string { t.Helper(); return "127.0.0.1:" + rig.FreePorts(t, 1)[0] },
		"it hangs":                   hanging,
		"its certificate is expired": expired,
	} {
		t.Run(name, func(t *testing.T) {
			shared.front.backends.Store(&[]string{backend(t)})
			kept, lost := newVMWithoutWebhooks(t), newVMWithoutWebhooks(t)
			kept.budget()
			other := kept.newPod(metav1.ObjectMeta{GenerateName: "other-"})
			var group sync.WaitGroup
			group.Go(func() {
				if a := kept.evict(); a.code != 429 || !strings.Contains(a.text, byBudget) {
					t.Errorf("a VM with a budget: %+v", a)
				}
			})
			group.Go(func() { // the webhook fails open
				if a := lost.evict(); a.code != 0 {
					t.Errorf("a VM without a budget: %+v", a)
				}
			})
			begin := time.Now()
			if a := kept.evictPod(other.Name); a.code != 0 {
				t.Errorf("another pod: %+v", a)
			}
			if took := time.Since(begin); took > 8*time.Second { // the API server waits 10 s for a webhook
				t.Errorf("another pod's eviction waited %v for the webhook", took)
			}
			group.Wait()
			if mark := kept.get().Status.EvacuationNodeName; mark != "" {
				t.Errorf("marked for %s", mark)
			}
			again := replicas(t, 1)
			if a := kept.evict(); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
				t.Errorf("afterwards: %+v", a)
			}
			again[0].Kill()
		})
	}
}

// newVMWithoutWebhooks makes a VM whose pod gets the launcher label only after its
// creation. So the API server does not ask the webhook about the creation, and a fault does
// not slow it down.
func newVMWithoutWebhooks(t *testing.T) *vm {
	t.Helper()
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, lateLabel: true})
	v.changePod(`{"metadata":{"labels":{"kubevirt.io":"virt-launcher"}}}`)
	return v
}

// hanging starts a server that accepts connections and never answers, and returns its address.
func hanging(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// expired starts a server whose certificate was valid until a minute ago, and returns the
// address. The CA that the API server trusts has signed the certificate.
func expired(t *testing.T) string {
	t.Helper()
	secret := rig.Read[corev1.Secret](shared.In(t, rig.Ours), "vmgrace-cluster-controller")
	caBlock, _ := pem.Decode(secret.Data["next-ca.crt"])
	keyBlock, _ := pem.Decode(secret.Data["next-ca.key"])
	ca, err := x509.ParseCertificate(caBlock.Bytes)
	kit.Must(t, err)
	caKey, err := x509.ParsePKCS1PrivateKey(keyBlock.Bytes)
	kit.Must(t, err)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	kit.Must(t, err)
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, &key.PublicKey, caKey)
	kit.Must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}})
	kit.Must(t, err)
	s := &http.Server{ReadHeaderTimeout: time.Second, ErrorLog: log.New(t.Output(), "", 0), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the API server asks somebody whose certificate has ended")
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

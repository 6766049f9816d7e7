package webhookcerts

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func renewed(t *testing.T, k *Keeper, s *corev1.Secret) *corev1.Secret {
	t.Helper()
	next := s.DeepCopy()
	if err := k.renew(next, time.Now()); err != nil {
		t.Fatal(err)
	}
	return next
}

// known reports whether a client with this caBundle accepts that certificate.
func known(t *testing.T, bundle, certificate *corev1.Secret) bool {
	t.Helper()
	pair, err := tls.X509KeyPair(certificate.Data[certKey], certificate.Data[keyKey])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle.Data[bundleKey])
	for _, name := range []string{"vmgrace-cluster-controller.ns.svc", "localhost"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Logf("%s: %v", name, err)
			return false
		}
	}
	return true
}

func TestEachGenerationIsKnownBeforeAndAfterItIsServed(t *testing.T) {
	k := New(Config{Namespace: "ns", Validity: time.Hour})
	s := []*corev1.Secret{renewed(t, k, &corev1.Secret{})}
	for i := range 4 {
		s = append(s, renewed(t, k, s[i]))
		if !known(t, s[i], s[i]) || !known(t, s[i], s[i+1]) || !known(t, s[i+1], s[i]) {
			t.Errorf("generations %d and %d do not know each other", i, i+1)
		}
	}
	if known(t, s[3], s[0]) {
		t.Error("a CA is trusted for ever")
	}
	if n := len(split(s[4].Data[bundleKey])); n != maxCAs {
		t.Errorf("the bundle has %d CAs", n)
	}
}

func TestACertificateIsRenewedInTime(t *testing.T) {
	k := New(Config{Namespace: "ns", Validity: 90 * time.Minute})
	s := renewed(t, k, &corev1.Secret{})
	if left := time.Until(k.due(s)); left < 58*time.Minute || left > 61*time.Minute {
		t.Errorf("due in %v, want it when a third is left", left)
	}
	for name, harm := range map[string]func(*corev1.Secret){
		"nothing":            func(s *corev1.Secret) { s.Data = nil },
		"no key":             func(s *corev1.Secret) { delete(s.Data, keyKey) },
		"another's key":      func(s *corev1.Secret) { s.Data[keyKey] = renewed(t, k, s).Data[keyKey] },
		"no bundle":          func(s *corev1.Secret) { s.Data[bundleKey] = nil },
		"no next CA":         func(s *corev1.Secret) { s.Data[nextKey] = nil },
		"unknown next CA":    func(s *corev1.Secret) { s.Data[nextKey] = renewed(t, k, s).Data[nextKey] },
		"no key of the path": func(s *corev1.Secret) { delete(s.Data, pathKey) },
		"a short one":        func(s *corev1.Secret) { s.Data[pathKey] = []byte("a") },
		"rubbish":            func(s *corev1.Secret) { s.Data[certKey] = []byte("rubbish") },
	} {
		harmed := s.DeepCopy()
		harm(harmed)
		if due := k.due(harmed); time.Now().Before(due) {
			t.Errorf("%s: due %v", name, due)
		}
		if healed := renewed(t, k, harmed); time.Now().After(k.due(healed)) || !known(t, healed, healed) {
			t.Errorf("%s: a new generation does not heal it", name)
		}
	}
}

func TestTheKeyOfThePathStaysAndIsNeverEmpty(t *testing.T) {
	k := New(Config{Namespace: "ns", Validity: time.Hour})
	if k.ValidKey("") {
		t.Error("no key is a key before there is one")
	}
	s := renewed(t, k, &corev1.Secret{})
	var m meter
	if err := k.serve(s, &m); err != nil {
		t.Fatal(err)
	}
	key := string(s.Data[pathKey])
	if len(key) < minPathKey || !k.ValidKey(key) || k.ValidKey("") || k.ValidKey(key[1:]) || k.ValidKey(key+"A") {
		t.Errorf("the key %q, or another one", key)
	}
	if wrong := validation.IsDNS1123Subdomain(key); len(wrong) > 0 {
		t.Errorf("the API server takes no Service's path with %q: %v", key, wrong)
	}
	if after := string(renewed(t, k, s).Data[pathKey]); after != key {
		t.Error("a renewal changes the key: the API server would not know it for a while")
	}
	if other := string(renewed(t, k, &corev1.Secret{}).Data[pathKey]); other == key {
		t.Error("two clusters have one key")
	}
}

func TestTheKeyGoesBehindThePathOnce(t *testing.T) {
	for is, want := range map[string]string{
		"/evict-pod":       "/evict-pod/K",
		"/evict-pod/K":     "/evict-pod/K",
		"/evict-pod/OLD":   "/evict-pod/K",
		"":                 "/evict-pod/K",
		"/proxy/evict-pod": "/proxy/evict-pod/K",
	} {
		service := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &is}}
		addKey(&service, "/evict-pod", "K")
		if got := *service.Service.Path; got != want {
			t.Errorf("%q becomes %q, want %q", is, got, want)
		}
		url := "https://h:1" + is
		direct := admissionregistrationv1.WebhookClientConfig{URL: &url}
		addKey(&direct, "/evict-pod", "K")
		if got := *direct.URL; got != "https://h:1"+want {
			t.Errorf("%q becomes %q", url, got)
		}
	}
}

func TestNothingIsServedBeforeThereIsACertificate(t *testing.T) {
	k := New(Config{Namespace: "ns", Validity: time.Hour})
	if k.Ready(nil) == nil {
		t.Error("ready without a certificate")
	}
	s := renewed(t, k, &corev1.Secret{})
	var m meter
	if err := k.serve(s, &m); err != nil || k.Ready(nil) != nil {
		t.Fatal(err)
	}
	c, err := k.Certificate(nil)
	if err != nil || int64(m) != c.Leaf.NotAfter.Unix() {
		t.Errorf("%v, the metric says %v", err, m)
	}
	broken := s.DeepCopy()
	broken.Data[keyKey] = nil
	if err := k.serve(broken, &m); err == nil {
		t.Error("a broken Secret is served")
	}
	if still, err := k.Certificate(nil); err != nil || !bytes.Equal(still.Certificate[0], c.Certificate[0]) {
		t.Error("a broken Secret takes away the certificate that is served")
	}
}

type meter float64

func (m *meter) CertificateEnds(at float64) { *m = meter(at) }

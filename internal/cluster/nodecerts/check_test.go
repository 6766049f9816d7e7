package nodecerts

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const account = "system:serviceaccount:" + namespace + ":node-agent"

func ecKey(curve elliptic.Curve) crypto.Signer {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func requestText(key crypto.Signer, change ...func(*x509.CertificateRequest)) []byte {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: migration.CommonNamePrefix + "node-a"}}
	for _, f := range change {
		f(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// csr returns a request of the agent of node-a.
func csr(name string, change ...func(*x509.CertificateRequest)) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: migration.SignerName, Username: account, Extra: map[string]certificatesv1.ExtraValue{nodeExtra: {"node-a"}},
			Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature},
			Request: requestText(ecKey(elliptic.P256()), change...),
		},
	}
}

func TestAnAgentsRequestForItsNodePasses(t *testing.T) {
	for name, change := range map[string]func(*x509.CertificateRequest){
		"no other name":      func(*x509.CertificateRequest) {},
		"the node as a name": func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-a"} },
	} {
		request, node, err := check(csr("x", change), account)
		if err != nil || node != "node-a" || request.Subject.CommonName != "vmgrace:node:node-a" {
			t.Errorf("%s: %v, %q, %v", name, request, node, err)
		}
	}
	for name, key := range map[string]crypto.Signer{"P-384": ecKey(elliptic.P384()), "RSA 2048": rsaKey(t, 2048), "Ed25519": edKey(t)} {
		c := csr("x")
		c.Spec.Request = requestText(key)
		if _, _, err := check(c, account); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func edKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestAnyOtherRequestIsRefusedInOneLine(t *testing.T) {
	spec := func(change func(*certificatesv1.CertificateSigningRequestSpec)) *certificatesv1.CertificateSigningRequest {
		c := csr("x")
		change(&c.Spec)
		return c
	}
	for name, c := range map[string]struct {
		csr  *certificatesv1.CertificateSigningRequest
		want string
	}{
		"another account": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Username = "system:admin" }), "only " + account},
		"no node":         {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Extra = nil }), "names no node"},
		"an empty node": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra = map[string]certificatesv1.ExtraValue{nodeExtra: {""}}
		}), "names no node"},
		"two nodes": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra = map[string]certificatesv1.ExtraValue{nodeExtra: {"node-a", "node-b"}}
		}), "names no node"},
		"another node": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra = map[string]certificatesv1.ExtraValue{nodeExtra: {"node-b"}}
		}), "subject is"},
		"more usages": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages, certificatesv1.UsageCertSign)
		}), "usages are"},
		"fewer usages": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = s.Usages[1:] }), "usages are"},
		"no PEM":       {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = []byte("x") }), "not one PEM block"},
		"another PEM": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
		}), "not one PEM block"},
		"more after it": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = slices.Concat(s.Request, s.Request) }), "not one PEM block"},
		"rubbish in PEM": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}), "cannot be read"},
		"another's signature": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			block, _ := pem.Decode(s.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			s.Request = pem.EncodeToMemory(block)
		}), "not signed with its own key"},
		"a weak EC key":       {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = requestText(ecKey(elliptic.P224())) }), "too weak"},
		"a weak RSA key":      {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = requestText(rsaKey(t, 1024)) }), "too weak"},
		"no subject":          {csr("x", func(r *x509.CertificateRequest) { r.Subject = pkix.Name{} }), "subject is"},
		"more in the subject": {csr("x", func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }), "subject is"},
		"another name":        {csr("x", func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-a", "node-b"} }), "names beside node"},
		"a mail address":      {csr("x", func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), "names beside node"},
		"an IP address":       {csr("x", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{127, 0, 0, 1}} }), "names beside node"},
		"a URI":               {csr("x", func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }), "names beside node"},
	} {
		_, node, err := check(c.csr, account)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || node != "" {
			t.Errorf("%s: %v, node %q, want %q", name, err, node, c.want)
		}
	}
}

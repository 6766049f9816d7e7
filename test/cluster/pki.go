package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// pki is the cluster's certificate authority. Its files are in <home>/pki.
type pki struct {
	home *home
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// pair is a certificate and its key, as PEM and as files.
type pair struct {
	cert, key         []byte
	certFile, keyFile string
}

func newPKI(h *home) (*pki, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	tmpl := certificate(pkix.Name{CommonName: "vmgrace-test-ca"})
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	p := &pki{home: h, key: key, cert: cert}
	if _, err := p.write("ca", der, key); err != nil {
		return nil, err
	}
	// The key that signs service account tokens has no certificate.
	sa, err := newKey()
	if err != nil {
		return nil, err
	}
	_, err = p.write("sa", nil, sa)
	return p, err
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return key, nil
}

func certificate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetUint64(uint64(time.Now().UnixNano())),
		Subject:      subject,
		// The tests may set the clock back.
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(10 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// ca returns the path of the authority's certificate.
func (p *pki) ca() string { return p.home.path("pki", "ca.crt") }

// caKey and saKey return the paths of the private keys.
func (p *pki) caKey() string { return p.home.path("pki", "ca.key") }
func (p *pki) saKey() string { return p.home.path("pki", "sa.key") }

// issue makes the files <name>.crt and <name>.key. hosts are the names and addresses under
// which clients reach a server.
func (p *pki) issue(name string, subject pkix.Name, hosts ...string) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	tmpl := certificate(subject)
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, p.cert, key.Public(), p.key)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", name, err)
	}
	return p.write(name, der, key)
}

func (p *pki) write(name string, der []byte, key *ecdsa.PrivateKey) (pair, error) {
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("key of %s: %w", name, err)
	}
	out := pair{key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: k})}
	if out.keyFile, err = p.home.write("pki/"+name+".key", out.key); err != nil || der == nil {
		return out, err
	}
	out.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	out.certFile, err = p.home.write("pki/"+name+".crt", out.cert)
	return out, err
}

// kubeconfig writes <name>.kubeconfig for a user of the API server at that URL.
func (p *pki) kubeconfig(name, url string, subject pkix.Name) (string, error) {
	id, err := p.issue(name, subject)
	if err != nil {
		return "", err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
	text, err := json.Marshal(newKubeconfig(
		map[string]any{"server": url, "certificate-authority-data": ca},
		map[string]any{"client-certificate-data": id.cert, "client-key-data": id.key}))
	if err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return p.home.write(name+".kubeconfig", text)
}

// newKubeconfig returns a kubeconfig with one cluster and one user. JSON is YAML too.
func newKubeconfig(cluster, user any) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "test", "user": user}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": "test"}}},
	}
}

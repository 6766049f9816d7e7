package webhookcerts

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret.
const (
	certKey    = "tls.crt"
	keyKey     = "tls.key"
	bundleKey  = "ca.crt"      // the caBundle: previous, current and next CA
	nextKey    = "next-ca.crt" // signs the next certificate
	nextKeyKey = "next-ca.key"
	pathKey    = "path-key" // the end of the path of a webhook that writes
)

// skew allows for clocks of other machines that are behind.
const skew = time.Hour

// minPathKey is the shortest length of rand.Text: 128 bits.
const minPathKey = 26

// maxCAs is the size of a bundle: the previous, the current and the next CA.
const maxCAs = 3

// due returns when to renew the Secret's certificate: the zero time if it cannot be used,
// otherwise when a third of its validity is left.
func (k *Keeper) due(secret *corev1.Secret) time.Time {
	next := secret.Data[nextKey]
	if len(next) == 0 || len(secret.Data[nextKeyKey]) == 0 || !bytes.Contains(secret.Data[bundleKey], next) || len(secret.Data[pathKey]) < minPathKey {
		return time.Time{}
	}
	served, err := tls.X509KeyPair(secret.Data[certKey], secret.Data[keyKey])
	if err != nil {
		return time.Time{}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data[bundleKey])
	if _, err := served.Leaf.Verify(x509.VerifyOptions{DNSName: k.names()[0], Roots: roots}); err != nil {
		return time.Time{}
	}
	return served.Leaf.NotAfter.Add(-k.cfg.Validity / 3)
}

// names returns the DNS names of the certificate.
func (k *Keeper) names() []string {
	service := Name + "." + k.cfg.Namespace + ".svc"
	return []string{service, service + ".cluster.local", "localhost"}
}

// renew puts the next generation into the Secret.
func (k *Keeper) renew(secret *corev1.Secret, now time.Time) error {
	names := k.names()
	maker := rotator.CertRotator{
		CAName: Name + "-ca", CAOrganization: "vmgrace", DNSName: names[0], ExtraDNSNames: names[1:],
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	// A CA is first the next, then the current, then the previous one: three validities,
	// and one in reserve.
	makeCA := func() (*rotator.KeyPairArtifacts, error) {
		return maker.CreateCACert(now.Add(-skew), now.Add(4*k.cfg.Validity+skew))
	}
	bundle := split(secret.Data[bundleKey])
	ca := readCA(secret.Data[nextKey], secret.Data[nextKeyKey], now.Add(k.cfg.Validity))
	if ca == nil { // the first certificate, or the Secret was changed by others
		var err error
		if ca, err = makeCA(); err != nil {
			return err
		}
	}
	if !bytes.Contains(bytes.Join(bundle, nil), ca.CertPEM) {
		bundle = append(bundle, ca.CertPEM)
	}
	next, err := makeCA()
	if err != nil {
		return err
	}
	cert, key, err := maker.CreateCertPEM(ca, now.Add(-skew), now.Add(k.cfg.Validity))
	if err != nil {
		return err
	}
	bundle = append(bundle, next.CertPEM)
	bundle = bundle[max(0, len(bundle)-maxCAs):]
	path := secret.Data[pathKey]
	if len(path) < minPathKey {
		path = []byte(strings.ToLower(rand.Text())) // a Service's path must be lower case
	}
	secret.Data = map[string][]byte{
		pathKey: path, certKey: cert, keyKey: key, bundleKey: bytes.Join(bundle, nil), nextKey: next.CertPEM, nextKeyKey: next.KeyPEM,
	}
	return nil
}

// readCA returns the CA, nil if it cannot sign certificates that are valid until then.
func readCA(certPEM, keyPEM []byte, until time.Time) *rotator.KeyPairArtifacts {
	ca, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil
	}
	key, ok := ca.PrivateKey.(*rsa.PrivateKey)
	if !ok || ca.Leaf.NotAfter.Before(until) {
		return nil
	}
	return &rotator.KeyPairArtifacts{Cert: ca.Leaf, Key: key, CertPEM: certPEM, KeyPEM: keyPEM}
}

// split returns the certificates of a bundle, each as PEM.
func split(bundle []byte) [][]byte {
	var all [][]byte
	for {
		block, rest := pem.Decode(bundle)
		if block == nil {
			return all
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, pem.EncodeToMemory(block))
		}
		bundle = rest
	}
}

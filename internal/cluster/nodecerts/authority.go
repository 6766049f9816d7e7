package nodecerts

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const (
	// caLeft is the remaining validity at which a CA is replaced; a CA is valid for ten
	// years.
	caLeft = 365 * 24 * time.Hour
	// skew allows for clocks of other machines that are behind.
	skew = 5 * time.Minute
	// leafMost is the longest validity of an agent's certificate.
	leafMost = 24 * time.Hour
)

// authority is the agents' CA with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// getCA returns the agents' CA from its Secret, and makes one if there is no usable one.
// Its certificate is in the ConfigMap before it signs.
func (s *signer) getCA(ctx context.Context) (*authority, error) {
	secret := &corev1.Secret{}
	err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: migration.CAName}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("CA of the agents: %w", err)
	}
	was, now := secret.DeepCopy(), time.Now()
	ca, former := readCA(secret), readFormer(secret, now)
	if ca == nil || now.Add(caLeft).After(ca.cert.NotAfter) {
		if ca != nil {
			former = append(former, replaced{ca.cert, now})
		}
		if ca, err = makeCA(secret, now); err != nil {
			return nil, fmt.Errorf("CA of the agents: %w", err)
		}
	}
	writeFormer(secret, former)
	if err := s.keep(ctx, was, secret); err != nil {
		return nil, fmt.Errorf("CA of the agents: %w", err)
	}
	if err := s.publish(ctx, ca, former); err != nil {
		return nil, fmt.Errorf("bundle of the agents' CA: %w", err)
	}
	return ca, nil
}

// readCA returns the Secret's CA, nil if it is unusable.
func readCA(secret *corev1.Secret) *authority {
	certs, err := cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return nil
	}
	key, err := keyutil.ParsePrivateKeyPEM(secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(certs[0].PublicKey) || !certs[0].IsCA {
		return nil
	}
	return &authority{certs[0], signer}
}

// makeCA puts a new CA into the Secret's data.
func makeCA(secret *corev1.Secret, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: migration.CAName, NotBefore: now.Add(-skew)}, key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	certPEM, err := cert.EncodeCertificates(ca)
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM}
	return &authority{ca, key}, nil
}

// keep writes the Secret if it is not as it was.
func (s *signer) keep(ctx context.Context, was, is *corev1.Secret) error {
	if maps.EqualFunc(was.Data, is.Data, bytes.Equal) {
		return nil
	}
	if is.ResourceVersion != "" {
		return s.Update(ctx, is)
	}
	is.Namespace, is.Name, is.Type = s.Namespace, migration.CAName, corev1.SecretTypeTLS
	return s.Create(ctx, is)
}

// publish writes only the certificates of the Secret to the ConfigMap. What others have
// put there is no longer trusted.
func (s *signer) publish(ctx context.Context, ca *authority, former []replaced) error {
	trusted := make([]*x509.Certificate, 1, 1+len(former))
	trusted[0] = ca.cert
	for _, f := range former {
		trusted = append(trusted, f.cert)
	}
	bundle, err := cert.EncodeCertificates(trusted...)
	if err != nil {
		return err
	}
	data := map[string]string{migration.CAKey: string(bundle)}
	published := &corev1.ConfigMap{}
	err = s.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: migration.CAName}, published)
	switch {
	case apierrors.IsNotFound(err):
		published.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: migration.CAName}
		published.Data = data
		return s.Create(ctx, published)
	case err != nil:
		return err
	case maps.Equal(published.Data, data):
		return nil
	}
	published.Data = data
	return s.Update(ctx, published)
}

// sign makes an agent's certificate in PEM. asked is its validity in seconds, nil for
// the longest.
func sign(ca *authority, request *x509.CertificateRequest, node string, asked *int32) ([]byte, error) {
	lasts := leafMost
	if asked != nil {
		lasts = min(lasts, time.Duration(*asked)*time.Second)
	}
	leaf := &x509.Certificate{
		Subject: request.Subject, DNSNames: []string{node},
		NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(lasts),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, ca.cert, request.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: raw}), nil
}

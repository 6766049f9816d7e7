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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/pkg/migration"
)

const (
	// caLeft is the remaining validity, of ten years, at which a CA is replaced.
	caLeft = 365 * 24 * time.Hour
	// skew allows for clocks of other machines that are late.
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
	ca := readCA(secret)
	if ca == nil {
		if ca, err = s.makeCA(ctx, secret); err != nil {
			return nil, fmt.Errorf("CA of the agents: %w", err)
		}
	}
	if err := s.publish(ctx, ca); err != nil {
		return nil, fmt.Errorf("bundle of the agents' CA: %w", err)
	}
	return ca, nil
}

// readCA returns the Secret's CA, nil if it is unusable or due for replacement.
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
	if !ok || !signer.PublicKey.Equal(certs[0].PublicKey) || !certs[0].IsCA || time.Now().Add(caLeft).After(certs[0].NotAfter) {
		return nil
	}
	return &authority{certs[0], signer}
}

func (s *signer) makeCA(ctx context.Context, secret *corev1.Secret) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: migration.CAName}, key)
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
	secret.Namespace, secret.Name = s.Namespace, migration.CAName
	secret.Data = map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM}
	if secret.ResourceVersion == "" { // there is none yet
		secret.Type = corev1.SecretTypeTLS
		err = s.Create(ctx, secret)
	} else {
		err = s.Update(ctx, secret)
	}
	return &authority{ca, key}, err
}

// publish writes the CA's certificate to the ConfigMap. The previous one stays: agents'
// certificates of it are valid for a day.
func (s *signer) publish(ctx context.Context, ca *authority) error {
	own, err := cert.EncodeCertificates(ca.cert)
	if err != nil {
		return err
	}
	published := &corev1.ConfigMap{}
	err = s.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: migration.CAName}, published)
	switch {
	case apierrors.IsNotFound(err):
		published.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: migration.CAName}
		published.Data = map[string]string{migration.CAKey: string(own)}
		return s.Create(ctx, published)
	case err != nil:
		return err
	}
	bundle := own
	before, _ := cert.ParseCertsPEM([]byte(published.Data[migration.CAKey])) // an invalid bundle is replaced
	for _, c := range before {
		if c.Equal(ca.cert) || !c.IsCA || c.NotAfter.Before(time.Now()) {
			continue
		}
		one, err := cert.EncodeCertificates(c)
		if err != nil {
			return err
		}
		bundle = append(bundle, one...)
		break
	}
	if bytes.Equal(bundle, []byte(published.Data[migration.CAKey])) {
		return nil
	}
	published.Data = map[string]string{migration.CAKey: string(bundle)}
	return s.Update(ctx, published)
}

// sign makes an agent's certificate in PEM. asked is its validity in seconds, nil: the
// longest one.
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

package certs

import (
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Name of the Secret, the Service and the webhook configurations.
const Name = "vmgrace-cluster-controller"

// Config says for whom the certificate is.
type Config struct {
	Namespace string
	Validity  time.Duration
	// Guarded is the path of validating webhooks: the Secret's key is behind it.
	Guarded string
}

// Meter hears when the certificate ends.
type Meter interface{ CertificateEnds(unixSeconds float64) }

// Keeper has the certificate that is served now. Safe for concurrent use.
type Keeper struct {
	cfg    Config
	served atomic.Pointer[tls.Certificate]
	key    atomic.Pointer[[]byte]
}

// New returns one without a certificate.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

var errNone = errors.New("there is no certificate yet")

// Certificate is for tls.Config.GetCertificate.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.served.Load(); c != nil {
		return c, nil
	}
	return nil, errNone
}

// Knows reports whether somebody has the key that the API server was given with
// the path: who reaches the port is not yet the API server.
func (k *Keeper) ValidKey(key string) bool {
	known := k.key.Load()
	return known != nil && subtle.ConstantTimeCompare(*known, []byte(key)) == 1
}

// Ready is a health check.
func (k *Keeper) Ready(*http.Request) error {
	_, err := k.Certificate(nil)
	return err
}

// serve takes the Secret's certificate from the next connection on.
func (k *Keeper) serve(secret *corev1.Secret, m Meter) error {
	c, err := tls.X509KeyPair(secret.Data[certKey], secret.Data[keyKey])
	if err != nil {
		return err
	}
	m.CertificateEnds(float64(c.Leaf.NotAfter.Unix()))
	k.key.Store(new(secret.Data[pathKey]))
	k.served.Store(&c)
	return nil
}

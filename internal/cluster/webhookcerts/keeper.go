package webhookcerts

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

// Config is the namespace of the Service, and the certificate's validity.
type Config struct {
	Namespace string
	Validity  time.Duration
	// Guarded is the path of validating webhooks that the Secret's key is appended to.
	Guarded string
}

// Meter records when the certificate expires.
type Meter interface{ CertificateEnds(unixSeconds float64) }

// Keeper holds the served certificate and the key. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	served atomic.Pointer[tls.Certificate]
	key    atomic.Pointer[[]byte]
}

// New returns a Keeper without a certificate. Add's controller fills it from the Secret.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

var errNone = errors.New("there is no certificate yet")

// Certificate implements tls.Config.GetCertificate. It fails before there is one.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.served.Load(); c != nil {
		return c, nil
	}
	return nil, errNone
}

// ValidKey reports whether key is the one at the end of the webhook's path, which only the
// API server has. It takes constant time for keys of one length.
func (k *Keeper) ValidKey(key string) bool {
	known := k.key.Load()
	return known != nil && subtle.ConstantTimeCompare(*known, []byte(key)) == 1
}

// Ready is a health check: it fails before there is a certificate.
func (k *Keeper) Ready(*http.Request) error {
	_, err := k.Certificate(nil)
	return err
}

// serve uses the Secret's certificate and key from the next connection on.
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

package migrate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const (
	rootsInterval = 5 * time.Minute // how often the roots are reread
	identityRetry = 5 * time.Second
	identityMax   = time.Minute
	// identityMinInterval is the shortest time between two attempts, even while a migration
	// waits.
	identityMinInterval = 2 * time.Second
)

// ErrNoAuthority means that the cluster has no authority for nodes' certificates. Where
// KubeVirt moves the VMs it never has one, so this is no failure.
var ErrNoAuthority = errors.New("no cluster-controller has made the authority for nodes' certificates; beside KubeVirt none does")

// Signer requests certificates.
type Signer interface {
	// Sign takes a certificate request and returns the certificate, both as PEM.
	Sign(ctx context.Context, request []byte) ([]byte, error)
	// Roots returns the certificates of the trusted authorities as PEM. It fails with
	// ErrNoAuthority if there is none.
	Roots(ctx context.Context) ([]byte, error)
}

// Identity keeps this node's certificate. The key is never written to disk. All methods but
// Run may be called at any time.
type Identity struct {
	node        string
	signer      Signer
	log         *slog.Logger
	cert        atomic.Pointer[tls.Certificate]
	roots       atomic.Pointer[x509.CertPool]
	refreshSoon chan struct{}
}

// NewIdentity returns an Identity without a certificate; Run requests one.
func NewIdentity(node string, signer Signer, log *slog.Logger) *Identity {
	return &Identity{node: node, signer: signer, log: log, refreshSoon: make(chan struct{}, 1)}
}

// Certificate returns nil while there is no valid certificate.
func (i *Identity) Certificate() *tls.Certificate {
	c := i.cert.Load()
	if c == nil || time.Now().After(c.Leaf.NotAfter) {
		return nil
	}
	return c
}

// RefreshSoon makes Run retry soon. It does not block.
func (i *Identity) RefreshSoon() {
	select {
	case i.refreshSoon <- struct{}{}:
	default:
	}
}

// Run requests a certificate, and renews it after two thirds of its lifetime, until ctx
// ends. changed is called when there is a new one.
func (i *Identity) Run(ctx context.Context, changed func()) {
	retry, lastError := identityRetry, ""
	for ctx.Err() == nil {
		wait, err := i.refresh(ctx, changed)
		if err == nil {
			retry, lastError = identityRetry, ""
		} else {
			wait, retry = retry, min(2*retry, identityMax)
			if text := err.Error(); text != lastError && ctx.Err() == nil {
				lastError = text
				level := slog.LevelWarn
				if errors.Is(err, ErrNoAuthority) {
					level = slog.LevelInfo
				}
				i.log.Log(ctx, level, "this node has no certificate for live migrations; asking again", "err", err)
			}
		}
		i.sleep(ctx, wait)
	}
}

// sleep waits. It ends early, but not before identityMinInterval, if a migration needs the
// certificate.
func (i *Identity) sleep(ctx context.Context, wait time.Duration) {
	long, short := time.After(wait), time.After(min(wait, identityMinInterval))
	select {
	case <-ctx.Done():
		return
	case <-short:
	}
	select {
	case <-ctx.Done():
	case <-long:
	case <-i.refreshSoon:
	}
}

// refresh reads the roots, renews the certificate if necessary, and returns when to refresh
// again.
func (i *Identity) refresh(ctx context.Context, changed func()) (time.Duration, error) {
	text, err := i.signer.Roots(ctx)
	if err != nil {
		return 0, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return 0, errors.New("the roots for nodes' certificates have none in them")
	}
	i.roots.Store(roots)
	if c := i.cert.Load(); c != nil && signedBy(c.Leaf, roots) {
		if left := time.Until(dueAt(c.Leaf)); left > 0 {
			return min(left, rootsInterval), nil
		}
	}
	cert, err := i.request(ctx, roots)
	if err != nil {
		return 0, err
	}
	i.cert.Store(cert)
	i.log.Info("this node has a certificate for live migrations", "until", cert.Leaf.NotAfter)
	changed()
	return min(time.Until(dueAt(cert.Leaf)), rootsInterval), nil
}

// dueAt returns the end of two thirds of a certificate's lifetime.
func dueAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

func signedBy(c *x509.Certificate, roots *x509.CertPool) bool {
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

func (i *Identity) request(ctx context.Context, roots *x509.CertPool) (*tls.Certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: migration.CommonNamePrefix + i.node},
	}, private)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	text, err := i.signer.Sign(ctx, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("what was signed is no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("what was signed: %w", err)
	}
	if time.Now().Before(leaf.NotBefore) { // which is 5 minutes before it was signed
		return nil, errors.New("what was signed is not valid yet: this node's clock is more than 5 minutes behind the cluster-controller's; correct it")
	}
	if node, err := nodeOf(leaf); err != nil || node != i.node || !signedBy(leaf, roots) {
		return nil, errors.Join(errors.New("what was signed is not for this node, or not by whom nodes trust"), err)
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: private, Leaf: leaf}, nil
}

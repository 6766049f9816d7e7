package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/test/kit"
)

// signer is an authority that signs whatever it is asked for.
type signer struct {
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

func (s *signer) Sign(_ context.Context, request []byte) ([]byte, error) {
	block, _ := pem.Decode(request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return s.certify(&x509.Certificate{Subject: asked.Subject}, asked.PublicKey)
}

func (s *signer) Roots(context.Context) ([]byte, error) {
	return s.certify(s.root, s.key.Public())
}

func (s *signer) certify(c *x509.Certificate, public any) ([]byte, error) {
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, s.root, public, s.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// Given an agent without a certificate. Then it takes no migrations. When it has one, it does,
// but not while its listener does not work. Otherwise target pods would prefer a node whose
// agent cannot answer.
func TestMigrationsAreTakenWithCertificateAndListener(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	authority := &signer{key: key, root: &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}}
	m := &migrations{node: &node{Options: &Options{}}, identity: migrate.NewIdentity("a", authority, slog.New(slog.DiscardHandler))}
	if m.takes() {
		t.Error("it takes migrations without a certificate")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, certified := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); m.identity.Run(ctx, func() { close(certified) }) }()
	<-certified
	cancel()
	<-ended
	if !m.takes() {
		t.Error("it takes none with a certificate")
	}
	m.notListening.Store(true)
	if m.takes() {
		t.Error("it takes migrations without a listener")
	}
}

func TestADryRunKeepsNoLabelAndNoCondition(t *testing.T) {
	for dry, want := range map[bool]bool{true: false, false: true} {
		n := &node{Options: &Options{DryRun: dry}}
		n.vmis = n.Options.vmis(func(string, string) {}, slog.New(slog.DiscardHandler))
		if has := n.nodeLabel() != nil; has != want {
			t.Errorf("dry run %v: a label %v", dry, has)
		}
		if has := n.podConditions() != nil; has != want {
			t.Errorf("dry run %v: a condition %v", dry, has)
		}
	}
}

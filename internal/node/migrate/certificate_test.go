package migrate

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// controller signs as cluster-controller does.
type controller struct {
	mu       sync.Mutex // held by a test that looks while Run runs
	t        *testing.T
	ca       *authority
	roots    []byte // nil: those of ca
	err      error  // of Roots
	signErr  error
	lasts    time.Duration
	change   func(*x509.Certificate) // of what is signed
	answer   []byte                  // instead of a certificate
	signed   int
	rootsAsk int
}

func caPEM(a *authority) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// newCA returns an authority by the clock of a synctest bubble.
func newCA(t *testing.T) *authority {
	t.Helper()
	a := newAuthority(t)
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(100*24*time.Hour)
	a.cert = signCertificate(t, template, template, &a.key.PublicKey, a.key)
	return a
}

func signCertificate(t *testing.T, template, parent *x509.Certificate, public any, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *controller) Roots(context.Context) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rootsAsk++
	if c.roots != nil {
		return c.roots, c.err
	}
	return caPEM(c.ca), c.err
}

func (c *controller) Sign(_ context.Context, request []byte) ([]byte, error) {
	c.signed++
	if c.answer != nil || c.signErr != nil {
		return c.answer, c.signErr
	}
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		c.t.Fatalf("the request is %q", request)
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || asked.CheckSignature() != nil || asked.Subject.String() != "CN=vmgrace:node:a" {
		c.t.Fatalf("the request: %v, %v", asked, err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: asked.Subject, NotBefore: time.Now(), NotAfter: time.Now().Add(c.lasts),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if c.change != nil {
		c.change(leaf)
	}
	is := signCertificate(c.t, leaf, c.ca.cert, asked.PublicKey, c.ca.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: is.Raw}), nil
}

func newIdentity(c *controller) *Identity {
	return NewIdentity("a", c, slog.New(slog.DiscardHandler))
}

// A certificate is renewed after two thirds of its life, or at once if its authority is no
// longer trusted. The authorities are read every 5 minutes.
func TestACertificateIsRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{t: t, ca: newCA(t), lasts: 3 * time.Hour}
		i, changes := newIdentity(c), 0
		refresh := func(wait time.Duration, signed int) {
			t.Helper()
			got, err := i.refresh(t.Context(), func() { changes++ })
			if err != nil || got != wait || c.signed != signed || changes != signed {
				t.Errorf("%v, %v, signed %d, changed %d; want %v and %d", got, err, c.signed, changes, wait, signed)
			}
		}
		if i.Certificate() != nil {
			t.Error("a certificate before one was asked for")
		}
		refresh(rootsInterval, 1)
		refresh(rootsInterval, 1)
		time.Sleep(2*time.Hour - time.Minute) //nolint:forbidigo // virtual time
		refresh(time.Minute, 1)
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		refresh(rootsInterval, 2)
		// Another authority.
		c.ca = newCA(t)
		refresh(rootsInterval, 3)
		// A certificate with a short life.
		c.ca, c.lasts = newCA(t), 3*time.Minute
		refresh(2*time.Minute, 4)
		if i.Certificate() == nil {
			t.Error("no certificate")
		}
		time.Sleep(3 * time.Minute) //nolint:forbidigo // virtual time
		if i.Certificate() == nil {
			t.Error("no certificate at the end of its life")
		}
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		if i.Certificate() != nil {
			t.Error("a certificate that is not valid any more")
		}
	})
}

// The answer is not what was asked for, is no certificate, or is of an unknown authority.
// The former certificate stays.
func TestAnAnswerThatIsNoCertificateOfThisNodeIsNotTaken(t *testing.T) {
	stranger := newAuthority(t)
	subject := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
	}
	for name, change := range map[string]func(*controller){
		"no roots":             func(c *controller) { c.roots = []byte("rubbish") },
		"roots cannot be read": func(c *controller) { c.err = errors.New("away") },
		"it is not signed":     func(c *controller) { c.signErr = errors.New("denied") },
		"no PEM":               func(c *controller) { c.answer = []byte("rubbish") },
		"no certificate": func(c *controller) {
			c.answer = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
		},
		"another node's":        func(c *controller) { c.change = subject(migration.CommonNamePrefix + "b") },
		"no node's":             func(c *controller) { c.change = subject("a") },
		"a node without a name": func(c *controller) { c.change = subject(migration.CommonNamePrefix) },
		"of an unknown CA":      func(c *controller) { c.roots = caPEM(stranger) },
		"it has ended":          func(c *controller) { c.lasts = -time.Second },
		"the clock is behind": func(c *controller) {
			c.change = func(leaf *x509.Certificate) {
				leaf.NotBefore, leaf.NotAfter = time.Now().Add(time.Minute), time.Now().Add(time.Hour)
			}
		},
	} {
		c := &controller{t: t, ca: newAuthority(t), lasts: time.Minute}
		i := newIdentity(c)
		if _, err := i.refresh(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		before := i.Certificate()
		if before == nil || before.PrivateKey == nil {
			t.Fatal("no certificate")
		}
		i.cert.Load().Leaf.NotBefore = time.Now().Add(-time.Hour) // it is due
		change(c)
		changed := false
		if _, err := i.refresh(t.Context(), func() { changed = true }); err == nil || changed || strings.Contains(err.Error(), "\n\n") {
			t.Errorf("%s: taken, %v", name, err)
		} else if strings.Contains(err.Error(), "clock") != (name == "the clock is behind") {
			t.Errorf("%s: %v", name, err)
		}
		if i.Certificate() != before {
			t.Errorf("%s: the former certificate is gone", name)
		}
	}
}

// Retries back off from 5 s to a minute, and begin anew after a success. An error is logged
// once.
func TestRetriesForACertificateBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		c := &controller{t: t, ca: newCA(t), lasts: 3 * time.Hour, err: errors.New("away")}
		i, changes := NewIdentity("a", c, slog.New(slog.NewTextHandler(&text, nil))), 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		c.mu.Lock()
		pass := func(d time.Duration) {
			c.mu.Unlock()
			time.Sleep(d) //nolint:forbidigo // virtual time
			synctest.Wait()
			c.mu.Lock()
		}
		go func() { defer close(ended); i.Run(ctx, func() { changes++ }) }()
		const s = time.Second
		// The moments of the tries: 0, 5, 15, 35, 75, 135 s.
		for _, step := range []struct {
			after time.Duration
			asked int
		}{{0, 1}, {4 * s, 1}, {2 * s, 2}, {8 * s, 2}, {2 * s, 3}, {18 * s, 3}, {2 * s, 4}, {38 * s, 4}, {2 * s, 5}, {58 * s, 5}, {2 * s, 6}} {
			pass(step.after)
			if c.rootsAsk != step.asked {
				t.Fatalf("%d tries, want %d", c.rootsAsk, step.asked)
			}
		}
		if n := strings.Count(text.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings of one error", n)
		}
		c.err = errors.New("forbidden")
		pass(time.Minute)
		if n := strings.Count(text.String(), "level=WARN"); n != 2 {
			t.Errorf("%d warnings of two errors", n)
		}
		c.err = nil
		pass(time.Minute)
		if changes != 1 || i.Certificate() == nil {
			t.Errorf("%d changes", changes)
		}
		before := c.rootsAsk
		pass(rootsInterval - 2*time.Second)
		c.err = errors.New("away")
		if c.rootsAsk != before {
			t.Errorf("%d tries too early", c.rootsAsk-before)
		}
		pass(4*time.Second + identityRetry)
		if c.rootsAsk != before+2 {
			t.Errorf("%d tries, want one after %v and one %v later", c.rootsAsk-before, rootsInterval, identityRetry)
		}
		if n := strings.Count(text.String(), "level=WARN"); n != 3 {
			t.Errorf("%d warnings: that of a new failure is left out", n)
		}
		c.mu.Unlock()
		cancel()
		<-ended
		if n := strings.Count(text.String(), "level=WARN"); n != 3 {
			t.Errorf("%d warnings: the agent's end is one", n)
		}
	})
}

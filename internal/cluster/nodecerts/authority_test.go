package nodecerts

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const namespace = "vmgrace-system"

// scene is a signer and its API server.
type scene struct {
	*testing.T
	*signer

	api      client.WithWatch
	registry *prometheus.Registry
	writes   int
	fails    map[string]error // by verb and kind
}

func given(t *testing.T, objects ...client.Object) *scene {
	t.Helper()
	s := &scene{T: t, registry: prometheus.NewRegistry(), fails: map[string]error{}}
	fault := func(verb string, o client.Object) error {
		kind := "request"
		switch o.(type) {
		case *corev1.Secret:
			kind = "secret"
		case *corev1.ConfigMap:
			kind = "configmap"
		}
		if verb != "get" {
			s.writes++
		}
		return s.fails[verb+" "+kind]
	}
	s.api = fake.NewClientBuilder().WithStatusSubresource(csr("")).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := fault("get", o); err != nil {
				return err
			}
			return c.Get(ctx, k, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := fault("create", o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := fault("update", o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if err := fault(sub, o); err != nil {
				return err
			}
			if sub == "approval" { // which the fake client does not have
				return c.Status().Update(ctx, o, opts...)
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}).Build()
	s.signer = &signer{Config{Log: slog.New(slog.DiscardHandler), Live: s.api, Namespace: namespace, Meter: metrics.New(s.registry)}, s.api}
	return s
}

func (s *scene) secret() *corev1.Secret {
	s.Helper()
	is := &corev1.Secret{}
	if err := s.api.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: migration.CAName}, is); err != nil {
		s.Fatal(err)
	}
	return is
}

func (s *scene) bundle() *corev1.ConfigMap {
	s.Helper()
	is := &corev1.ConfigMap{}
	if err := s.api.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: migration.CAName}, is); err != nil {
		s.Fatal(err)
	}
	return is
}

// trusts asserts that exactly these CAs are trusted, in this order.
func (s *scene) trusts(want ...*x509.Certificate) {
	s.Helper()
	b := s.bundle()
	if len(b.Data) != 1 {
		s.Errorf("the ConfigMap has more than its bundle: %v", b.Data)
	}
	all, err := cert.ParseCertsPEM([]byte(b.Data[migration.CAKey]))
	if err != nil || len(all) != len(want) {
		s.Fatalf("%d CAs are trusted, want %d: %v", len(all), len(want), err)
	}
	for i, c := range all {
		if !c.Equal(want[i]) {
			s.Errorf("CA %d is another one", i)
		}
	}
}

func (s *scene) ca() *authority {
	s.Helper()
	ca, err := s.getCA(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return ca
}

// made returns a CA that is valid until then.
func made(t *testing.T, until time.Time, change ...func(*x509.Certificate)) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	for _, f := range change {
		f(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	is, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{is, key}
}

// secretOf returns the Secret with this certificate and key.
func secretOf(t *testing.T, c *x509.Certificate, key crypto.Signer, former ...replaced) *corev1.Secret {
	t.Helper()
	certPEM, err := cert.EncodeCertificates(c)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: migration.CAName}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM}}
	writeFormer(s, former)
	return s
}

const year = 365 * 24 * time.Hour

func TestTheFirstCAIsMadeAndPublished(t *testing.T) {
	s := given(t)
	ca := s.ca()
	s.trusts(ca.cert)
	kept := s.secret()
	if again := readCA(kept); again == nil || !again.cert.Equal(ca.cert) || kept.Type != corev1.SecretTypeTLS || len(kept.Data) != 2 {
		t.Errorf("the Secret does not have the CA: %v", kept.Data)
	}
	if left := time.Until(ca.cert.NotAfter); left < 9*year || !ca.cert.IsCA || time.Since(ca.cert.NotBefore) < skew {
		t.Errorf("CA from %v, for %v", ca.cert.NotBefore, left)
	}
	// It stays, and nothing is written for it.
	before := s.writes
	if again := s.ca(); !again.cert.Equal(ca.cert) || s.writes != before {
		t.Errorf("another CA, or %d writes", s.writes-before)
	}
}

func TestACAThatIsDueIsReplacedAndTrustedForADay(t *testing.T) {
	for left, due := range map[time.Duration]bool{caLeft - time.Hour: true, caLeft + time.Hour: false} {
		old := made(t, time.Now().Add(left))
		s := given(t, secretOf(t, old.cert, old.key))
		ca := s.ca()
		if ca.cert.Equal(old.cert) == due {
			t.Errorf("%v left: replaced %t", left, !due)
		}
		if !due {
			s.trusts(old.cert)
			continue
		}
		s.trusts(ca.cert, old.cert)
		s.ca()
		s.trusts(ca.cert, old.cert)
		if f := readFormer(s.secret(), time.Now()); len(f) != 1 || time.Since(f[0].at) > time.Minute {
			t.Errorf("former CAs: %v", f)
		}
	}
}

func TestAFormerCAIsDroppedADayAfterItWasReplaced(t *testing.T) {
	ca := made(t, time.Now().Add(9*year))
	late, soon, ahead, planted := made(t, time.Now().Add(year)), made(t, time.Now().Add(year)), made(t, time.Now().Add(year)), made(t, time.Now().Add(year))
	leaf := made(t, time.Now().Add(year), func(c *x509.Certificate) { c.IsCA = false })
	now := time.Now()
	secret := secretOf(t, ca.cert, ca.key,
		replaced{late.cert, now.Add(-24 * time.Hour)},
		replaced{soon.cert, now.Add(-24*time.Hour + time.Minute)},
		replaced{ahead.cert, now.Add(skew - time.Minute)}, // by another replica's clock
		replaced{planted.cert, now.Add(skew + time.Minute)},
		replaced{leaf.cert, now},
	)
	plain, err := cert.EncodeCertificates(planted.cert)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data[formerKey] = bytes.Join([][]byte{plain, secret.Data[formerKey], []byte("rubbish")}, nil)
	s := given(t, secret)
	s.ca()
	s.trusts(ca.cert, soon.cert, ahead.cert)
	if f := readFormer(s.secret(), now.Add(-23*time.Hour)); len(f) != 1 {
		t.Errorf("the Secret keeps %d others", len(f))
	}
	if n := bytes.Count(s.secret().Data[formerKey], []byte("BEGIN")); n != 2 {
		t.Errorf("the Secret has %d former CAs, want 2", n)
	}
}

// A CA is not trusted if an editor of the ConfigMap added it, or if it was in a Secret that
// somebody deleted.
func TestNothingButTheSecretsCAsIsTrusted(t *testing.T) {
	foreign := made(t, time.Now().Add(9*year))
	text, err := cert.EncodeCertificates(foreign.cert)
	if err != nil {
		t.Fatal(err)
	}
	s := given(t)
	first := s.ca()
	b := s.bundle()
	b.Data[migration.CAKey] += string(text)
	if err := s.api.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	s.ensureCA(t.Context())
	s.trusts(first.cert)
	b = s.bundle()
	b.Data["more"] = string(text)
	if err := s.api.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	s.ensureCA(t.Context())
	s.trusts(first.cert)
	// After a leak:
	if err := s.api.Delete(t.Context(), s.secret()); err != nil {
		t.Fatal(err)
	}
	if next := s.ca(); next.cert.Equal(first.cert) {
		t.Error("the same CA again")
	} else {
		s.trusts(next.cert)
	}
}

func TestASecretThatCannotBeUsedIsReplaced(t *testing.T) {
	good, other := made(t, time.Now().Add(9*year)), made(t, time.Now().Add(9*year))
	leaf := made(t, time.Now().Add(9*year), func(c *x509.Certificate) { c.IsCA = false })
	for name, secret := range map[string]*corev1.Secret{
		"another's key": secretOf(t, good.cert, other.key),
		"no CA":         secretOf(t, leaf.cert, leaf.key),
		"no key":        secretOf(t, good.cert, good.key),
		"no cert":       secretOf(t, good.cert, good.key),
		"no data":       {ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: migration.CAName}},
	} {
		switch name {
		case "no key":
			delete(secret.Data, corev1.TLSPrivateKeyKey)
		case "no cert":
			secret.Data[corev1.TLSCertKey] = []byte("rubbish")
		}
		s := given(t, secret)
		ca := s.ca()
		if ca.cert.Equal(good.cert) || ca.cert.Equal(leaf.cert) {
			t.Errorf("%s: it is used", name)
		}
		s.trusts(ca.cert) // the former one may not be ours
	}
}

// An error does not mean that there is no CA. Nothing is signed before the CA is published.
func TestACAThatCannotBeKeptOrPublishedIsNotUsed(t *testing.T) {
	for _, fault := range []string{"get secret", "create secret", "get configmap", "create configmap"} {
		s := given(t)
		s.fails[fault] = errors.New("away")
		if ca, err := s.getCA(t.Context()); err == nil || ca != nil {
			t.Errorf("%s fails: %v, %v", fault, ca, err)
		}
		if writes := map[string]int{"get secret": 0, "create secret": 1, "get configmap": 1, "create configmap": 2}[fault]; s.writes != writes {
			t.Errorf("%s fails: %d writes, want %d", fault, s.writes, writes)
		}
		s.fails = nil
		s.trusts(s.ca().cert)
	}
	old := made(t, time.Now().Add(time.Hour))
	for _, fault := range []string{"update secret", "update configmap"} {
		s := given(t, secretOf(t, old.cert, old.key), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: migration.CAName}})
		s.fails[fault] = errors.New("away")
		if ca, err := s.getCA(t.Context()); err == nil || ca != nil {
			t.Errorf("%s fails: %v, %v", fault, ca, err)
		}
	}
}

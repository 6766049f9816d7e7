package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// unavailable is a signer that fails, and counts the requests for the roots.
type unavailable struct{ requests int }

func (n *unavailable) Sign(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("not asked for")
}
func (n *unavailable) Roots(context.Context) ([]byte, error) {
	n.requests++
	return nil, errors.New("there is no controller")
}

// cluster-controller may be installed long after the agents: a migration does not
// wait for the agent's next try.
func TestAMigrationThatWaitsHasTheCertificateAskedForSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &unavailable{}
		i := NewIdentity("a", n, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); i.Run(ctx, func() {}) }()
		defer func() { cancel(); <-ended }()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		before := n.requests
		if before > 20 {
			t.Errorf("%d requests in ten minutes without need", before)
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		before = n.requests
		for range 10 { // a side looks each second
			i.RefreshSoon()
			<-time.After(time.Second)
		}
		synctest.Wait()
		if more := n.requests - before; more < 4 || more > 6 {
			t.Errorf("%d requests in 10 s of need, want every 2 s", more)
		}
	})
}

// rubbish is a signer without a valid root.
type rubbish struct{ unavailable }

func (*rubbish) Roots(context.Context) ([]byte, error) { return []byte("rubbish"), nil }

// A ConfigMap that somebody left without a certificate removes no trust.
func TestRootsWithoutACertificateReplaceNone(t *testing.T) {
	i := NewIdentity("a", &rubbish{}, slog.New(slog.DiscardHandler))
	before := i.roots.Load()
	if _, err := i.refresh(t.Context(), func() { t.Error("a new certificate") }); err == nil || !strings.Contains(err.Error(), "have none in them") {
		t.Errorf("the error is %v", err)
	}
	if i.roots.Load() != before {
		t.Error("the roots were replaced")
	}
}

// missing is a signer in a cluster without an authority.
type missing struct{ unavailable }

func (*missing) Roots(context.Context) ([]byte, error) {
	return nil, fmt.Errorf("ConfigMap n/c: %w", ErrNoAuthority)
}

// Beside KubeVirt no node ever gets a certificate, which is no reason to warn.
func TestAClusterWithoutAnAuthorityIsNotWarnedOf(t *testing.T) {
	for signer, want := range map[Signer]string{&missing{}: "level=INFO", &unavailable{}: "level=WARN"} {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			i := NewIdentity("a", signer, slog.New(slog.NewTextHandler(&said, nil)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			i.Run(ctx, func() {})
			if lines := said.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, want) {
				t.Errorf("want one line with %s:\n%s", want, lines)
			}
		})
	}
}

package nodemigration

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// nobody signs, and counts how often it was asked for the roots.
type nobody struct{ asked int }

func (n *nobody) Sign(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("not asked for")
}
func (n *nobody) Roots(context.Context) ([]byte, error) {
	n.asked++
	return nil, errors.New("there is no controller")
}

// cluster-controller may be installed long after the agents: a migration does not
// wait for the agent's next try.
func TestAMigrationThatWaitsHasTheCertificateAskedForSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nobody{}
		i := NewIdentity("a", n, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); i.Run(ctx, func() {}) }()
		defer func() { cancel(); <-ended }()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		before := n.asked
		if before > 20 {
			t.Errorf("asked %d times in ten minutes without need", before)
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		before = n.asked
		for range 10 { // a side looks each second
			i.Want()
			<-time.After(time.Second)
		}
		synctest.Wait()
		if more := n.asked - before; more < 4 || more > 6 {
			t.Errorf("asked %d times in 10 s of need, want every 2 s", more)
		}
	})
}

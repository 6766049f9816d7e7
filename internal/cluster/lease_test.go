package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is a Lease that counts its writes.
type lock struct {
	resourcelock.Interface // methods not defined here are not called

	writes int
	err    error
}

func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	l.writes++
	return l.err
}

// Given a leader that renews its Lease four times a second. Then it is written each two seconds, but at once
// where it says anything new or the last write has failed: no other replica may wait for it in vain, and
// none may take over from one that lives.
func TestTheLeaseIsWrittenEachTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &lock{}
		l := &lease{Interface: api}
		holds := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15, AcquireTime: metav1.Now(), LeaderTransitions: 3}
		update := func(what string, r resourcelock.LeaderElectionRecord, writes int) {
			t.Helper()
			api.writes = 0
			r.RenewTime = metav1.Now()
			if err := l.Update(t.Context(), r); !errors.Is(err, api.err) {
				t.Errorf("%s: %v, want %v", what, err, api.err)
			}
			if api.writes != writes {
				t.Errorf("%s: %d writes, want %d", what, api.writes, writes)
			}
		}
		renewals := func(n int) (written int) {
			for range n {
				time.Sleep(retryPeriod) //nolint:forbidigo // virtual
				api.writes = 0
				r := holds
				r.RenewTime = metav1.Now()
				if err := l.Update(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				written += api.writes
			}
			return written
		}
		update("acquired", holds, 1)
		if n := renewals(80); n != 10 {
			t.Errorf("%d writes in 20 s, want 10", n)
		}
		released := resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1, LeaderTransitions: 3}
		update("released", released, 1)
		update("acquired again", holds, 1)
		holds.LeaderTransitions++
		update("another transition", holds, 1)

		time.Sleep(renewEach) //nolint:forbidigo // virtual
		api.err = errors.New("unavailable")
		update("the API server is gone", holds, 1)
		update("and again", holds, 1)
		api.err = nil
		update("it is there again", holds, 1)
		update("right after", holds, 0)
	})
}

// hanging is a Lease whose API server answers until a time, and then no more.
type hanging struct {
	resourcelock.Interface // methods not defined here are not called

	until, written time.Time
}

func (*hanging) Identity() string   { return "me" }
func (*hanging) Describe() string   { return "lease" }
func (*hanging) RecordEvent(string) {}

func (h *hanging) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := h.answer(ctx); err != nil {
		return nil, nil, err
	}
	return nil, nil, apierrors.NewNotFound(schema.GroupResource{}, "lease")
}

func (h *hanging) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	return h.write(ctx)
}

func (h *hanging) Update(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	return h.write(ctx)
}

func (h *hanging) write(ctx context.Context) error {
	err := h.answer(ctx)
	if err == nil {
		h.written = time.Now()
	}
	return err
}

func (h *hanging) answer(ctx context.Context) error {
	if !time.Now().After(h.until) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// Given a leader whose API server accepts its renewals and answers none any more, at any moment between two
// writes. Then it ends well before others take its Lease over: two leaders would act.
func TestALeaderWhoseRenewalHangsEndsBeforeOthersTakeOver(t *testing.T) {
	for _, until := range []time.Duration{0, retryPeriod, renewEach - retryPeriod, renewEach, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			api := &hanging{until: time.Now().Add(until)}
			var ended time.Time
			leaderelection.RunOrDie(t.Context(), leaderelection.LeaderElectionConfig{
				Lock: &lease{Interface: api}, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
				Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() { ended = time.Now() }},
			})
			if after := ended.Sub(api.written); after > leaseDuration-4*time.Second {
				t.Errorf("silent after %v: it ends %v after its last write, others take over after %v", until, after, leaseDuration)
			}
		})
	}
}

// The configuration of the Lease's requests is its own: with its time limit the watches of the manager would
// end every few seconds.
func TestTheLeaseHasAConfigurationOfItsOwn(t *testing.T) {
	cfg := &rest.Config{Host: "https://localhost:1", UserAgent: userAgent}
	if _, err := newLock(cfg, "n"); err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout != 0 || cfg.UserAgent != userAgent {
		t.Errorf("the configuration has become %+v", cfg)
	}
}

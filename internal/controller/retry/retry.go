// Package retry has failed reconciles repeated ever more rarely by controller-runtime's
// queue, and says of each object once that it fails.
package retry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/internal/controller/patch"
)

const (
	// first and most bound the delay of one object's retries; each doubles it.
	first, most = 10 * time.Millisecond, 5 * time.Minute
	// quick is how many retries of a stale cache are made without waiting for others.
	quick = 5
	// perSecond bounds the other retries of all objects of a controller: a policy may
	// refuse what thousands of them need.
	perSecond = 5
)

// Failures are those of one controller. Safe for concurrent use.
type Failures struct {
	log    *slog.Logger
	events events.EventRecorder
	cache  client.Reader
	object func() client.Object

	mu   sync.Mutex
	all  map[reconcile.Request]failure
	next time.Time // when the next of the retries is made that wait for each other
}

// failure is that of an object which has not succeeded since.
type failure struct {
	tries   int
	refused bool // not a stale cache
	said    bool
}

// New returns the failures of a controller whose requests name objects of one kind, of
// which object returns an empty one. Events are about these; they are read from the cache.
func New(log *slog.Logger, recorder events.EventRecorder, cache client.Reader, object func() client.Object) *Failures {
	return &Failures{
		log: log, events: recorder, cache: cache, object: object,
		all: map[reconcile.Request]failure{},
	}
}

// Options are those of the controller.
func (f *Failures) Options(mgr ctrl.Manager, workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers, RateLimiter: f,
		LogConstructor: func(of *reconcile.Request) logr.Logger {
			if of == nil {
				return mgr.GetLogger()
			}
			return logr.Discard() // it would log each try
		},
	}
}

// Reconciler returns r, whose failures are said once for as long as they last.
func (f *Failures) Reconciler(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, of reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, of)
		if err == nil || ctx.Err() != nil {
			f.Forget(of)
			return result, err
		}
		if say := f.failed(of, !patch.Stale(err)); say {
			f.say(ctx, of, err)
		}
		return reconcile.Result{}, err
	})
}

// failed records a failure, and reports whether it is to be said.
func (f *Failures) failed(of reconcile.Request, refused bool) (say bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.all[of]
	is.refused = refused
	say = !is.said && (refused || is.tries > quick)
	is.said = is.said || say
	f.all[of] = is
	return say
}

func (f *Failures) say(ctx context.Context, of reconcile.Request, err error) {
	text := fmt.Sprintf("%.400s", strings.Join(strings.Fields(err.Error()), " "))
	f.log.Warn("it fails and is tried again, ever more rarely", "object", of.String(), "why", text)
	about := f.object()
	if f.cache.Get(ctx, of.NamespacedName, about) == nil {
		f.events.Eventf(about, nil, corev1.EventTypeWarning, "Failing", "Retry", "it is tried again, ever more rarely: %s", text)
	}
}

// When implements workqueue.TypedRateLimiter.
func (f *Failures) When(of reconcile.Request) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.all[of]
	delay := most
	if is.tries < 16 {
		delay = min(most, first<<is.tries)
	}
	if is.tries++; is.refused || is.tries > quick {
		now := time.Now()
		if f.next.Before(now) {
			f.next = now
		}
		delay = max(delay, f.next.Sub(now))
		f.next = f.next.Add(time.Second / perSecond)
	}
	f.all[of] = is
	return delay
}

// Forget implements workqueue.TypedRateLimiter.
func (f *Failures) Forget(of reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, of)
}

// NumRequeues implements workqueue.TypedRateLimiter.
func (f *Failures) NumRequeues(of reconcile.Request) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[of].tries
}

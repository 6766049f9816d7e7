// Package retry makes controller-runtime's queue repeat failed reconciles ever more
// rarely, and reports each failing object once.
package retry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/internal/cluster/patch"
)

const (
	// first and most bound the delay of one object's retries; each doubles it.
	first, most = 10 * time.Millisecond, 5 * time.Minute
	// quick is how many retries for a stale cache perSecond does not limit.
	quick = 5
	// perSecond bounds the other retries of a controller: a policy may refuse what
	// thousands of objects need.
	perSecond = 5
)

// Failures has the failing objects of one controller. It is safe for concurrent use.
type Failures struct {
	log    *slog.Logger
	events events.EventRecorder
	cache  client.Reader
	object func() client.Object

	backoff workqueue.TypedRateLimiter[reconcile.Request] // of each object
	limit   *rate.Limiter                                 // of all, perSecond

	mu  sync.Mutex
	all map[reconcile.Request]failure
}

// failure is the state of an object that failed since it last succeeded.
type failure struct {
	refused bool // not a stale cache
	said    bool
}

// New returns the failures of a controller. Its requests name objects of one kind; object
// returns an empty one. Events are about these objects, which are read from the cache.
func New(log *slog.Logger, recorder events.EventRecorder, cache client.Reader, object func() client.Object) *Failures {
	return &Failures{
		log: log, events: recorder, cache: cache, object: object,
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](first, most), limit: rate.NewLimiter(perSecond, 1),
		all: map[reconcile.Request]failure{},
	}
}

// Options returns those of the controller.
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

// Reconciler wraps r. It reports the failures of an object once until it succeeds.
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

// failed records a failure, and returns whether to report it.
func (f *Failures) failed(of reconcile.Request, refused bool) (say bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.all[of]
	is.refused = refused
	say = !is.said && (refused || f.backoff.NumRequeues(of) > quick)
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

// When implements workqueue.TypedRateLimiter. No delay is longer than most, however many fail.
func (f *Failures) When(of reconcile.Request) time.Duration {
	delay := f.backoff.When(of)
	f.mu.Lock()
	refused := f.all[of].refused
	f.mu.Unlock()
	if !refused && f.backoff.NumRequeues(of) <= quick {
		return delay
	}
	slot := f.limit.Reserve()
	if slot.Delay() > most {
		slot.Cancel() // the others have no later ones for it
		return most
	}
	return max(delay, slot.Delay())
}

// Forget implements workqueue.TypedRateLimiter.
func (f *Failures) Forget(of reconcile.Request) {
	f.backoff.Forget(of)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, of)
}

// NumRequeues implements workqueue.TypedRateLimiter.
func (f *Failures) NumRequeues(of reconcile.Request) int { return f.backoff.NumRequeues(of) }

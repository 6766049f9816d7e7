// Package settings holds the current cluster-wide settings. It follows the KubeVirt object
// and the EvacuationPolicy.
package settings

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// retry is the requeue delay while the settings are not known.
const retry = 200 * time.Millisecond

// Live has the last valid settings. Safe for concurrent use.
type Live struct {
	mu      sync.Mutex
	now     evacuation.Settings
	known   bool
	changed []chan event.GenericEvent
}

// New returns the defaults; Known is false.
func New() *Live { return &Live{now: evacuation.Defaults()} }

// Get returns the current settings. Callers must not change their slices.
func (l *Live) Get() evacuation.Settings {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Known reports whether the cluster's settings were read. Before that no mark, budget or
// migration may be removed because of them.
func (l *Live) Known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

// WhenKnown returns a reconciler that calls r, once the settings are known.
func (l *Live) WhenKnown(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !l.Known() {
			return reconcile.Result{RequeueAfter: retry}, nil
		}
		return r.Reconcile(ctx, request)
	})
}

// Set replaces the settings and notifies all sources.
func (l *Live) Set(s evacuation.Settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.known = s, true
	for _, c := range l.changed { // several changes may be merged into one event
		select {
		case c <- event.GenericEvent{}:
		default: // the last event is still pending
		}
	}
}

// Source enqueues, after each change, the requests that all returns. It ends with its
// controller.
func (l *Live) Source(all handler.MapFunc) source.Source {
	changed := make(chan event.GenericEvent, 1)
	l.mu.Lock()
	l.changed = append(l.changed, changed)
	l.mu.Unlock()
	return source.Channel(changed, handler.EnqueueRequestsFromMapFunc(all))
}

// Package settings has the settings of the whole cluster as they are now: those
// of KubeVirt's object and of the EvacuationPolicy, followed live.
package settings

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Retry is how soon somebody asks again who came before the cluster's settings.
const Retry = 200 * time.Millisecond

// Live is the last good settings. Safe for concurrent use.
type Live struct {
	mu      sync.Mutex
	now     evacuation.Settings
	known   bool
	changed []chan event.GenericEvent
}

// New returns the defaults, which are not known to be the cluster's settings.
func New() *Live { return &Live{now: evacuation.Defaults()} }

// Get returns a copy of what counts now; its slices are not to be changed.
func (l *Live) Get() evacuation.Settings {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Known reports whether the cluster was asked for its settings. Before that
// nothing may be undone because of them.
func (l *Live) Known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

// Set replaces them and tells all who want to know.
func (l *Live) Set(s evacuation.Settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.known = s, true
	for _, c := range l.changed { // several changes may become one
		select {
		case c <- event.GenericEvent{}:
		default: // it has yet to take the last one
		}
	}
}

// Source has a controller look, after each change, at what all names. It ends with
// its controller.
func (l *Live) Source(all handler.MapFunc) source.Source {
	changed := make(chan event.GenericEvent, 1)
	l.mu.Lock()
	l.changed = append(l.changed, changed)
	l.mu.Unlock()
	return source.Channel(changed, handler.EnqueueRequestsFromMapFunc(all))
}

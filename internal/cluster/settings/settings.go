// Package settings reads the cluster-wide settings from the cache: the KubeVirt object and
// the EvacuationPolicy.
package settings

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// ErrUnknown means that the cache does not show the settings yet. Until then no mark, budget
// or migration may be removed because of them.
var ErrUnknown = errors.New("the cluster's settings are not known yet")

// Live reads the settings. It keeps the last valid value of each, which stays in force while
// the cache shows an invalid one. It is safe for concurrent use.
type Live struct {
	cache  client.Reader
	synced func() bool

	mu   sync.Mutex
	good evacuation.Settings
}

// New returns settings that are unknown until synced returns true.
func New(cache client.Reader, synced func() bool) *Live {
	return &Live{cache: cache, synced: synced, good: evacuation.Defaults()}
}

// FromCache returns the settings that a manager's cache shows.
func FromCache(ctx context.Context, c cache.Cache) (*Live, error) {
	var all []cache.Informer
	for _, o := range []client.Object{&kubevirt.KubeVirt{}, &v1alpha1.EvacuationPolicy{}} {
		i, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch of the settings: %w", err)
		}
		all = append(all, i)
	}
	return New(c, func() bool {
		for _, i := range all {
			if !i.HasSynced() {
				return false
			}
		}
		return true
	}), nil
}

// Get returns the current settings, the defaults while they are unknown. Callers must not
// change their slices.
func (l *Live) Get() evacuation.Settings {
	now, _ := l.read() // on failure it has the last ones; Known says whether there are any
	return now.Settings
}

// Known returns ErrUnknown or the cache's error until the settings can be read.
func (l *Live) Known() error {
	_, err := l.read()
	return err
}

// Now returns the settings that the API server has, read through live. They are not kept: the cache
// may show them later. It fails while the cache shows none.
func (l *Live) Now(ctx context.Context, live client.Reader) (evacuation.Settings, error) {
	now, err := l.read()
	if err == nil {
		now, err = after(ctx, now.Settings, live)
	}
	return now.Settings, err
}

// Watch makes a controller enqueue, after each change of the settings that only passes, the requests
// that all returns. It starts after the settings are known.
func (l *Live) Watch(b *builder.Builder, all handler.MapFunc, only ...predicate.Predicate) *builder.Builder {
	enqueue := handler.EnqueueRequestsFromMapFunc(all)
	changes := builder.WithPredicates(append(only, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { // not of a status
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	}})...)
	return b.Watches(&kubevirt.KubeVirt{}, enqueue, changes).Watches(&v1alpha1.EvacuationPolicy{}, enqueue, changes)
}

// reading holds the settings, and what is wrong with their objects.
type reading struct {
	evacuation.Settings

	problems []problem
}

// problem is an invalid or ignored setting, with the object that has it.
type problem struct {
	about           client.Object
	reason, message string
	// foreign means that it is KubeVirt's if KubeVirt runs.
	foreign bool
}

// read reads the settings. After an error they are the last ones.
func (l *Live) read() (reading, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.synced() {
		return reading{Settings: l.good}, ErrUnknown
	}
	now, err := after(context.Background(), l.good, l.cache) // a cache that is synced does not wait
	if err == nil {
		l.good = now.Settings
	}
	return now, err
}

// after returns the settings that objects give, after those of last: these stay in force in place of
// invalid ones, and after an error.
func after(ctx context.Context, last evacuation.Settings, objects client.Reader) (reading, error) {
	now := reading{Settings: last}
	var all kubevirt.KubeVirtList
	if err := objects.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return now, fmt.Errorf("settings: %w", err)
	}
	var policies v1alpha1.EvacuationPolicyList // a list needs only the right that the cache needs
	if err := objects.List(ctx, &policies); err != nil {
		return now, fmt.Errorf("settings: %w", err)
	}
	var policy *v1alpha1.EvacuationPolicy
	for i := range policies.Items {
		if policies.Items[i].Name == v1alpha1.Name {
			policy = &policies.Items[i]
		}
	}
	counts, others := evacuation.Oldest(all.Items)
	next, invalid := now.WithKubeVirt(counts)
	now.add(counts, "InvalidSetting", invalid...)
	for _, gate := range next.UnknownGates() {
		now.problems = append(now.problems, problem{about: counts, reason: "UnknownFeatureGate", message: gate.Message(), foreign: gate.Meant == ""})
	}
	for _, f := range evacuation.UnknownFields(counts) {
		now.problems = append(now.problems, problem{about: counts, reason: "InvalidSetting", message: f.Message, foreign: f.Foreign})
	}
	for i := range others {
		now.add(&others[i], "Ignored", fmt.Sprintf(
			"of several KubeVirts the oldest counts, which is %s/%s: remove this one", counts.Namespace, counts.Name))
	}
	next, invalid = next.WithPolicy(policy)
	now.add(policy, "InvalidSetting", invalid...)
	now.Settings = next
	return now, nil
}

func (r *reading) add(about client.Object, reason string, messages ...string) {
	for _, message := range messages {
		r.problems = append(r.problems, problem{about: about, reason: reason, message: message})
	}
}

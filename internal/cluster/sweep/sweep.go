// Package sweep ends what belongs to nobody: what is left of VMs, migrations and nodes that
// went while no controller ran, or whose end no event has told. It gathers from the cache,
// decides by live reads (evacuation.StaleMark, migration.Abandoned, migration.Forgotten) and
// acts.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
)

const (
	// every is the time between two sweeps.
	every = 10 * time.Minute
	// settle is how long a leftover must have been one: the controllers end most by
	// themselves, also those that they find at their start.
	settle = 10 * time.Second
	// timeout bounds what is done about one object.
	timeout = 30 * time.Second
	// workers is how many objects are dealt with at the same time.
	workers = 4
)

// Config is what the sweep needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
	Meter    *metrics.Meter
	// Evacuations, Migrations and Budgets mean that the controller of this name is enabled:
	// only then are its marks, its pods and migrations, or its budgets swept.
	Evacuations, Migrations, Budgets bool
	// Nodes means that nodes may be read.
	Nodes bool
	// Again gets migrations that their controller has to look at.
	Again chan<- event.GenericEvent
}

type sweeper struct {
	Config
	client.Client // reads the cache

	synced func(context.Context) error // waits until the cache has all that is swept
	told   sync.Map                    // UIDs of the migrations that Again has got
}

// Add adds the sweep to the manager. It runs in the elected replica, once the caches are
// synced.
func Add(mgr ctrl.Manager, cfg Config) error {
	s := &sweeper{Config: cfg, Client: mgr.GetClient()}
	s.synced = func(ctx context.Context) error {
		for _, kind := range s.kinds() {
			// The controllers watch them, too, but perhaps not yet: without an informer a list fails,
			// and with one that is not synced it is empty.
			if _, err := mgr.GetCache().GetInformer(ctx, kind); err != nil {
				return fmt.Errorf("cache of %T: %w", kind, err)
			}
		}
		return nil
	}
	return mgr.Add(s)
}

// kinds returns what is read from the cache.
func (s *sweeper) kinds() []client.Object {
	all := []client.Object{&kubevirt.VirtualMachineInstance{}, &kubevirt.VirtualMachineInstanceMigration{}}
	if s.Migrations {
		all = append(all, &corev1.Pod{})
	}
	if s.Budgets {
		all = append(all, &policyv1.PodDisruptionBudget{})
	}
	if s.readsNodes() {
		all = append(all, &corev1.Node{})
	}
	return all
}

// readsNodes reports whether nodes may be read, and are watched.
func (s *sweeper) readsNodes() bool { return s.Nodes && (s.Evacuations || s.Migrations) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *sweeper) NeedLeaderElection() bool { return true }

// Start sweeps at once and then at intervals, until ctx ends.
func (s *sweeper) Start(ctx context.Context) error {
	if err := s.synced(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // the controller ends
		}
		return err
	}
	timer := time.NewTicker(every)
	defer timer.Stop()
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("not all that is left over could be removed; the next sweep tries again", "after", every, "why", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

// suspect is an object that looks like a leftover in the cache.
type suspect struct {
	kind metrics.Leftover
	of   client.Object
	end  ending
}

func (x *suspect) key() string { return string(x.kind) + "/" + string(x.of.GetUID()) }

// sweep ends what looks like a leftover in two looks.
func (s *sweeper) sweep(ctx context.Context) error {
	before, err := s.suspects(ctx)
	if err != nil || len(before) == 0 {
		return err
	}
	was := map[string]bool{}
	for i := range before {
		was[before[i].key()] = true
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(settle):
	}
	now, err := s.suspects(ctx)
	if err != nil {
		return err
	}
	return s.endAll(ctx, now, was)
}

// endAll ends the suspects that were suspects before. One that fails stops no other.
func (s *sweeper) endAll(ctx context.Context, now []suspect, was map[string]bool) error {
	l := s.live()
	failed := make([]error, len(now))
	free := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for i := range now {
		if !was[now[i].key()] || ctx.Err() != nil {
			continue
		}
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			failed[i] = s.end(ctx, l, &now[i])
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

func (s *sweeper) end(ctx context.Context, l *live, x *suspect) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	about, why, err := x.end(ctx, l)
	switch {
	case patch.Stale(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // somebody changes or ends it
	case err != nil:
		return fmt.Errorf("%s of %s/%s: %w", x.kind, x.of.GetNamespace(), x.of.GetName(), err)
	case why == "":
		return nil
	}
	s.Log.Info("a leftover is removed", "kind", x.kind, "object", x.of.GetNamespace()+"/"+x.of.GetName(), "why", why)
	s.Events.Eventf(about, nil, corev1.EventTypeNormal, "LeftoverRemoved", "Sweep", "%s", text(x, why))
	s.Meter.LeftoverRemoved(x.kind)
	return nil
}

// text returns the text of an Event.
func text(x *suspect, why string) string {
	what := map[metrics.Leftover]string{
		metrics.LeftMark: "the mark is taken back", metrics.LeftLabel: "the label of a migration's target is removed",
		metrics.LeftPod: "launcher pod " + x.of.GetName() + " is deleted", metrics.LeftBudget: "disruption budget " + x.of.GetName() + " is deleted",
		metrics.LeftMigration: "migration " + x.of.GetName() + " is ended", metrics.LeftFinalizer: "migration " + x.of.GetName() + " is let go",
		metrics.LeftCondition: "the condition " + kubevirt.MigrationUndecided + " is removed",
	}[x.kind]
	return what + ": " + why
}

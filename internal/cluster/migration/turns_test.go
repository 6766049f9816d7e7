package migration

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// line is a queue of pending migrations of one node, each of its own VM, and one slot.
type line struct {
	*testing.T
	turns *turns
	all   []*object
	set   evacuation.Settings
}

func aLine(t *testing.T, n int) *line {
	t.Helper()
	l := &line{T: t, turns: newTurns(), set: evacuation.Settings{PerCluster: 1, PerNode: 1}}
	for i := range n {
		m := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("m", i), UID: types.UID(fmt.Sprint("m", i))}}
		m.Spec.VMIName = fmt.Sprint("vm", i)
		l.all = append(l.all, m)
	}
	return l
}

// compute computes the turns from what the cache shows, and returns the new ones.
func (l *line) compute() (fresh []string, again time.Duration) {
	l.Helper()
	var moving []evacuation.Moving
	for _, m := range l.all {
		if !m.Final() {
			moving = append(moving, evacuation.Moving{Migration: m, Node: "a"})
		}
	}
	all, again := l.turns.compute(moving, l.set, time.Now())
	for _, m := range all {
		fresh = append(fresh, m.Name)
	}
	return fresh, again
}

func (l *line) wants(what string, names ...string) {
	l.Helper()
	if got, _ := l.compute(); fmt.Sprint(got) != fmt.Sprint(names) {
		l.Errorf("%s: it is the turn of %v, want %v", what, got, names)
	}
}

func (l *line) begin(i int, err error) {
	l.Helper()
	got := l.turns.use(l.all[i], kubevirt.MigrationScheduling, func() error { return err })
	if !errors.Is(got, err) {
		l.Errorf("begin: %v, want %v", got, err)
	}
}

func TestATurnIsUsedOnceBeforeTheCacheShowsIt(t *testing.T) {
	l := aLine(t, 3)
	l.wants("at first", "m0")
	l.begin(0, nil)
	l.wants("written, and not in the cache") // the slot is taken
	if err := l.turns.use(l.all[0], kubevirt.MigrationScheduling, func() error { t.Error("written twice"); return nil }); !errors.Is(err, errNoTurn) {
		t.Errorf("a second time: %v", err)
	}
	if err := l.turns.use(l.all[1], kubevirt.MigrationScheduling, func() error { t.Error("written"); return nil }); !errors.Is(err, errNoTurn) {
		t.Errorf("the next one: %v", err)
	}
	l.all[0].Status.Phase = kubevirt.MigrationScheduling
	l.wants("in the cache: it may be handed to the agents", "m0")
	l.all[0].Status.Phase = kubevirt.MigrationFailed
	l.wants("ended", "m1")
}

func TestATurnIsLostToWhoComesFirst(t *testing.T) {
	l := aLine(t, 2)
	l.all[1].Spec.Priority = new(kubevirt.PrioritySystemMaintenance)
	last := l.all[1]
	l.all = l.all[1:]
	l.wants("alone", "m1")
	l.all = append(l.all, aLine(t, 1).all...)
	l.wants("with a user's", "m0")
	if err := l.turns.use(last, kubevirt.MigrationScheduling, func() error { return nil }); !errors.Is(err, errNoTurn) {
		t.Errorf("the descheduler's: %v", err)
	}
}

// A migration that cannot begin lets others go first, and is tried again later.
func TestAMigrationThatCannotBeginIsSetAside(t *testing.T) {
	kind := schema.GroupResource{Resource: "m"}
	for name, c := range map[string]struct {
		err  error
		free time.Duration // time until the slot is free
	}{
		"refused":           {apierrors.NewForbidden(kind, "m0", errors.New("a policy")), 0},
		"perhaps written":   {apierrors.NewTimeoutError("x", 1), doubtFor},
		"connection broken": {errors.New("EOF"), doubtFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := aLine(t, 2)
				l.wants("at first", "m0")
				l.begin(0, c.err)
				if c.free > 0 {
					if fresh, again := l.compute(); len(fresh) > 0 || again != c.free {
						t.Errorf("in doubt: %v, again in %v", fresh, again)
					}
					time.Sleep(c.free) //nolint:forbidigo // virtual
				}
				l.wants("others first", "m1")
				l.begin(1, nil)
				l.all[1].Status.Phase = kubevirt.MigrationSucceeded
				if fresh, again := l.compute(); len(fresh) > 0 || again != asideFor {
					t.Errorf("set aside: %v, again in %v", fresh, again)
				}
				time.Sleep(asideFor) //nolint:forbidigo // virtual
				l.wants("again", "m0")
			})
		})
	}
	t.Run("changed since it was read", func(t *testing.T) {
		l := aLine(t, 2)
		l.wants("at first", "m0")
		l.begin(0, apierrors.NewConflict(kind, "m0", errors.New("x")))
		l.wants("at once", "m0")
	})
	t.Run("no finalizer", func(t *testing.T) {
		l := aLine(t, 2)
		l.wants("at first", "m0")
		l.turns.refused("m0")
		l.wants("others first", "m1")
	})
}

func TestADeletedMigrationLeavesNoSlotBehind(t *testing.T) {
	l := aLine(t, 2)
	l.wants("at first", "m0")
	l.begin(0, nil)
	l.all = l.all[1:]
	l.wants("deleted", "m1")
	if len(l.turns.written) > 0 {
		t.Errorf("kept: %v", l.turns.written)
	}
}

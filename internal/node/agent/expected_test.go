package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

// withVMI runs a test with an API server that shows a VMI and no launcher pod,
// before an agent has seen it.
func withVMI(t *testing.T, test func(*rig)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		r.stop()
		r.cluster = &memoryCluster{synced: true, fate: grace.FateHere}
		r.cluster.vmi = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "40", DeletingAt: grace.Never}
		test(r)
	})
}

func (r *rig) keepers() int {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	return len(r.agent.keepers)
}

func TestAVMIWithoutADomainCostsNoKeeper(t *testing.T) {
	withVMI(t, func(r *rig) {
		// Given: a VMI that changes, and nothing that belongs to it.
		before := r.hv.Count(fake.OpGet, domain)
		r.run()
		for _, seconds := range []string{"40", "41", "40"} {
			r.api(func(c *memoryCluster) { c.vmi.Grace = seconds })
			r.after(minute)
		}
		if n, asked := r.keepers(), r.hv.Count(fake.OpGet, domain)-before; n != 0 || asked > 0 {
			t.Errorf("%d keepers, asked for %d times", n, asked)
		}
		// When its domain starts, it is guarded and reported at once.
		r.hv.Start(fake.Guest{Name: domain})
		r.after(100 * time.Millisecond)
		if rec, ok := r.record(); !ok || rec.UID != uid || rec.Period.Length != 40*second {
			t.Errorf("record %v %+v", ok, rec)
		}
		r.after(minute)
		at := r.Now()
		r.api(func(c *memoryCluster) { c.vmi.State, c.vmi.DeletingAt = grace.VMIDeleting, at })
		r.after(2 * second)
		r.startedAs(grace.VMIDeleted, at, 40*second)
	})
}

func TestADomainThatIsOlderThanTheWordOfItsVMIIsFoundSoon(t *testing.T) {
	withVMI(t, func(r *rig) {
		// Given: a domain that is nobody's.
		vmi := r.cluster.vmi
		r.cluster.vmi = nil
		r.run()
		r.hv.Start(fake.Guest{Name: domain})
		r.after(minute)
		if _, ok := r.record(); ok || r.keepers() > 0 {
			t.Fatal("it is guarded, and nobody knows for whom")
		}
		// When the watch shows its VMI, then no list is needed.
		r.api(func(c *memoryCluster) { c.vmi = vmi })
		r.after(listEvery + 100*time.Millisecond) // one may have just been made
		if rec, ok := r.record(); !ok || rec.UID != uid {
			t.Errorf("record %v %+v", ok, rec)
		}
	})
}

func TestVMIsThatChangeAllTheTimeDoNotKeepLibvirtBusy(t *testing.T) {
	withVMI(t, func(r *rig) {
		r.run()
		r.after(minute)
		before := r.hv.Count(fake.OpList, "")
		for range 1000 {
			r.agent.ClusterChanged("ns", "vm")
			r.after(time.Millisecond)
		}
		if n := r.hv.Count(fake.OpList, "") - before; n < 1 || n > 6 {
			t.Errorf("%d lists in a second", n)
		}
	})
}

func TestADomainWhoseStartNobodyHeardIsOnTheNextList(t *testing.T) {
	withVMI(t, func(r *rig) {
		r.run()
		r.after(minute)
		r.deaf.Store(true)
		r.hv.Start(fake.Guest{Name: domain})
		r.after(relist)
		if rec, ok := r.record(); !ok || rec.UID != uid {
			t.Errorf("record %v %+v", ok, rec)
		}
	})
}

func TestAVMIWhoseVMHasEndedIsRememberedUntilItIsGone(t *testing.T) {
	withVMI(t, func(r *rig) {
		// Given: a VMI that stays for its finalizers after its VM has ended.
		r.run()
		r.hv.Start(fake.Guest{Name: domain, Presses: 1})
		r.after(minute)
		r.api(func(c *memoryCluster) {
			c.fate, c.vmi.State, c.vmi.DeletingAt = grace.FateDeleted, grace.VMIDeleting, r.Now()
		})
		r.after(minute)
		if _, ok := r.record(); ok {
			t.Fatal("the VM has not ended")
		}
		if r.keepers() != 1 {
			t.Error("its deletion is forgotten, and would be held against the next domain")
		}
		r.api(func(c *memoryCluster) { c.vmi = nil })
		r.after(minute)
		if n := r.keepers(); n != 0 {
			t.Errorf("%d keepers", n)
		}
	})
}

func TestTheVMIOfADomainThatEndedByItselfCostsNoKeeperAgain(t *testing.T) {
	withVMI(t, func(r *rig) {
		r.run()
		for range 2 {
			r.hv.Start(fake.Guest{Name: domain})
			r.after(minute)
			if _, ok := r.record(); !ok {
				t.Error("it is not guarded")
			}
			r.hv.End(domain, grace.EndGuest)
			r.after(minute)
			if n := r.keepers(); n != 0 {
				t.Errorf("%d keepers", n)
			}
		}
	})
}

func TestANameThatNoDomainCanHaveIsSaidWhenItsVMIAppears(t *testing.T) {
	withVMI(t, func(r *rig) {
		r.run()
		for range 2 {
			r.agent.ClusterChanged("ns", strings.Repeat("a", 253))
			r.after(minute)
		}
		if n := r.meter.of("rejected name"); n != 1 {
			t.Errorf("rejected %d times", n)
		}
	})
}

package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/fake"
)

// late is a hypervisor whose call goes on after List has returned, as libvirt's does if
// its run directory has answered.
type late struct {
	*fake.Hypervisor
	calls   sync.WaitGroup
	mu      sync.Mutex
	filters []func(name string) bool
}

func (l *late) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	l.mu.Lock()
	l.filters = append(l.filters, ours)
	l.mu.Unlock()
	l.calls.Go(func() { ours(domain) })
	return l.Hypervisor.List(ctx, ours)
}

func TestAFilterThatIsUsedLateAnswersAsBefore(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a VM, and a libvirt that asks which domains are ours long after its answer counts.
		hv := &late{Hypervisor: r.hv}
		r.driver = hv
		r.guarded(fake.Guest{Name: domain}, "30")
		r.restart()
		r.after(relist + time.Second)
		// When: the lists were taken over meanwhile.
		hv.calls.Wait()
		synctest.Wait()
		hv.mu.Lock()
		defer hv.mu.Unlock()
		// Then: the answer is the same, and nothing has written to what it reads (go test -race).
		if len(hv.filters) < 2 {
			t.Fatalf("%d lists", len(hv.filters))
		}
		for i, ours := range hv.filters {
			if !ours(domain) {
				t.Errorf("list %d: the domain is not ours any more", i)
			}
		}
		if phase := r.agent.Phase(domain); phase != grace.Running {
			t.Errorf("phase %q", phase)
		}
	})
}

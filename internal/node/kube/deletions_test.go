//go:build !unit

package kube

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/node"
)

// deleting waits until a VMI is shown as deleted, and says how long that took.
func (r *rig) deleting(name string) time.Duration {
	r.Helper()
	begin := time.Now()
	r.eventually(func() bool { v := r.VMI(r.name, name); return v.State == grace.VMIDeleting }, "VMI %s is not shown as deleted", name)
	return time.Since(begin)
}

// stays checks for a while that none of the VMIs is shown as deleted.
func (r *rig) stays(seen map[string]grace.VMI, d time.Duration) {
	r.Helper()
	node.Never(r, d, func() bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(name string) bool {
			v := r.VMI(r.name, name)
			return v.State == grace.VMIDeleting
		})
	}, "a VMI is shown as deleted")
}

// marked counts the VMIs that the API server has marked as deleted.
func (r *rig) marked() int {
	r.Helper()
	return strings.Count(string(r.must("GET", strings.TrimSuffix(r.vmiPath(""), "/"), "").body), `"deletionTimestamp"`)
}

// throttled delays each answer to a GET that is no watch by 3 s, like an
// overloaded server.
func (p *proxy) throttled() {
	p.breaksFor(func(q *http.Request) bool { return q.Method == http.MethodGet && q.URL.Query().Get("watch") == "" },
		func(w http.ResponseWriter, q *http.Request) {
			select {
			case <-time.After(3 * time.Second):
				p.forward.ServeHTTP(w, q)
			case <-q.Context().Done():
			}
		})
}

func (r *rig) manyVMIs(n int) map[string]grace.VMI {
	r.Helper()
	seen := map[string]grace.VMI{}
	for i := range n {
		name := fmt.Sprintf("vm-%d", i)
		seen[name] = r.makeVMI(name, finalizer, `{}`)
	}
	for name, v := range seen {
		r.sees(name, v)
	}
	return seen
}

func (r *rig) letGo(seen map[string]grace.VMI) {
	r.Helper()
	for name := range seen {
		r.do("PATCH", r.vmiPath(name), `{"metadata":{"finalizers":null}}`)
	}
}

func TestADeletionIsSeenAtOnceAlsoByAThrottledServer(t *testing.T) {
	r := newRig(t).watching()
	seen := r.manyVMIs(3)
	asked := r.proxy.asked("GET " + crdPath)
	r.must("DELETE", r.vmiPath("vm-0"), "")
	t.Logf("shown after %v", r.deleting("vm-0"))
	if n := r.proxy.asked("GET "+crdPath) - asked; n != 1 {
		t.Errorf("%d questions about the CRD", n)
	}
	// If the answer takes longer than crdTimeout, the CRD's watch decides.
	r.proxy.throttled()
	r.must("DELETE", r.vmiPath("vm-1"), "")
	if took := r.deleting("vm-1"); took > 2*time.Second {
		t.Errorf("shown after %v", took)
	} else {
		t.Logf("throttled: shown after %v", took)
	}
	v := r.VMI(r.name, "vm-1")
	if v.DeletingAt > mono() || v.DeletingAt < mono().Add(-3*time.Second) {
		t.Errorf("deleted at %d, now it is %d", v.DeletingAt, mono())
	}
	r.proxy.recover()
	r.letGo(seen)
}

// The deletion of a CRD must not look like that of its objects, however slow
// the API server is.
func TestTheDeletionOfTheirCRDIsNoDeletionOf300VMIs(t *testing.T) {
	r := newRig(t).watching()
	t.Cleanup(r.restoreCRD)
	seen := r.manyVMIs(300)
	r.proxy.throttled()
	r.must("DELETE", crdPath, "")
	r.eventually(func() bool { return r.marked() == len(seen) }, "the API server does not delete them")
	r.stays(seen, 8*time.Second)
	r.proxy.recover()
	r.stays(seen, 2*time.Second)
	if n := r.proxy.asked("GET /apis/kubevirt.io/v1/namespaces"); n != 0 {
		t.Errorf("%d questions about single VMIs", n)
	}
	r.letGo(seen)
	r.restoreCRD()
	r.eventually(r.Up, "the return is not noticed")
	r.stays(seen, time.Second)
	for _, name := range []string{"vm-0", "vm-299"} {
		r.misses(name)
		r.wantFate(name, seen[name], grace.FateLost)
	}
}

func TestADeletionWaitsUntilTheCRDIsKnown(t *testing.T) {
	r := newRig(t)
	v := r.makeVMI("vm", finalizer, `{}`)
	seen := map[string]grace.VMI{"vm": v}
	r.must("DELETE", r.vmiPath("vm"), "")
	// Given a starting agent that is told of VMIs but not of their CRD.
	r.proxy.breaksFor(isCRD, bareStatus(http.StatusForbidden, "Forbidden"))
	r.start()
	r.sees("vm", v) // as if it were not deleted
	r.stays(seen, 3*time.Second)
	if r.Up() {
		t.Error("without the CRD the watches count as up")
	}
	r.wantFate("vm", v, grace.FateUnknown)
	r.proxy.recover()
	t.Logf("shown %v after the CRD could be watched again", r.deleting("vm"))
	r.letGo(seen)
}

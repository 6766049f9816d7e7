//go:build !unit

package evictions

import (
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vmgrace/vmgrace/test/rig"
)

// wire is a proxy between replicas and the API server. With it a test acts at the moment at
// which a mark is about to be written.
type wire struct {
	kubeconfig string
	atMark     atomic.Pointer[func() (goesOn bool)]
	// reads answers the reads of VMIs in the API server's place, and marks answers the
	// writes of their marks.
	reads, marks atomic.Pointer[http.HandlerFunc]
	// late delays what the replicas' caches are told.
	late rig.Late
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{}
	w.kubeconfig = shared.Proxy(t, shared.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, func(proxy *httputil.ReverseProxy) http.Handler {
		proxy.ModifyResponse = w.late.Response
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if instead := w.reads.Load(); instead != nil && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/virtualmachineinstances/") {
				(*instead)(rw, r)
				return
			}
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") && strings.Contains(r.URL.Path, "/virtualmachineinstances/") {
				if instead := w.marks.Load(); instead != nil {
					(*instead)(rw, r)
					return
				}
				if do := w.atMark.Load(); do != nil && !(*do)() {
					return
				}
			}
			proxy.ServeHTTP(rw, r)
		})
	})
	return w
}

// once calls do before the next mark is written, and then lets it be written.
func (w *wire) once(do func()) {
	var done atomic.Bool
	w.atMark.Store(new(func() bool {
		if done.CompareAndSwap(false, true) {
			do()
		}
		return true
	}))
}

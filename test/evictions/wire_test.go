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

// wire is between replicas and the API server. A test does something at the
// moment at which a mark is about to be written.
type wire struct {
	kubeconfig string
	atMark     atomic.Pointer[func() (goesOn bool)]
	// reads answers questions about VMIs, and marks their marks, in the API server's place.
	reads, marks atomic.Pointer[http.HandlerFunc]
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{}
	w.kubeconfig = shared.Proxy(t, shared.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, func(proxy *httputil.ReverseProxy) http.Handler {
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

// once does something before the next mark is written, and lets it be written.
func (w *wire) once(do func()) {
	var done atomic.Bool
	w.atMark.Store(new(func() bool {
		if done.CompareAndSwap(false, true) {
			do()
		}
		return true
	}))
}

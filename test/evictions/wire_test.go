//go:build !unit

package evictions

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vmgrace/vmgrace/test/kit"
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
	to, err := url.Parse(shared.api.URL)
	kit.Must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1 // watches
	account, err := clientcmd.BuildConfigFromFlags("", shared.api.ServiceAccount(t, ours, "cluster-controller").Kubeconfig)
	kit.Must(t, err)
	proxy.Transport, err = rest.TransportFor(account) // clients send no token where there is no TLS
	kit.Must(t, err)
	w := &wire{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
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
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\n"
	kit.Must(t, os.WriteFile(w.kubeconfig, []byte(text), 0o600))
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

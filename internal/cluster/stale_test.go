//go:build !unit

package cluster_test

import (
	"io"
	"net/http"
	"net/http/httputil"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// gate is a proxy between a controller and the API server. While it is shut, the watch of
// one kind gets nothing, and the cache is stale.
type gate struct {
	kubeconfig string
	shut       sync.RWMutex
}

func (w world) gate(path string) *gate {
	w.Helper()
	g := &gate{}
	g.kubeconfig = api.Proxy(w, api.Kubeconfig, func(proxy *httputil.ReverseProxy) http.Handler {
		proxy.ModifyResponse = func(r *http.Response) error {
			if r.Request.URL.Path == path && r.Request.URL.Query().Has("watch") {
				r.Body = gated{r.Body, g}
			}
			return nil
		}
		return proxy
	})
	return g
}

type gated struct {
	io.ReadCloser
	*gate
}

func (g gated) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	g.shut.RLock() // holds back what has arrived
	defer g.shut.RUnlock()
	return n, err
}

// Given a controller whose cache misses a cordon. When a VM is marked for that cordon, then
// its mark and its migration stay. Otherwise the drain of the node would not move the VM.
func TestACacheThatIsBehindTakesNoMark(t *testing.T) {
	w := given(t)
	w.node("n1")
	v := w.vm("vm", "n1", kubevirt.StrategyLiveMigrate, migratable)
	g := w.gate("/api/v1/nodes")
	w.controller("--leader-elect=false", "--kubeconfig="+g.kubeconfig)
	w.keeps(v, 1) // its caches are filled

	g.shut.Lock()
	w.cordon("n1", true)
	w.Change(v, `{"metadata":{"annotations":{"vmgrace.io/cordoned":"true"}}}`)
	w.mark(v)
	m := w.evacuation(v) // it has seen the mark and takes the node for schedulable
	w.evictionRequested(v, "Migrating")
	if now := w.read(v); now.Status.EvacuationNodeName != "n1" || w.unfinished(v) == nil || w.unfinished(v).UID != m.UID {
		t.Errorf("taken back: %+v", now.Status)
	}
	g.shut.Unlock()

	w.cordon("n1", false)
	w.eventually("mark and migration go", func() bool {
		return w.read(v).Status.EvacuationNodeName == "" && w.unfinished(v) == nil
	})
}

// Given a controller whose cache misses a launcher pod. When the VM is to migrate, then the
// migration does not fail for lack of that pod. A failure is final, so the VM would not
// move.
func TestACacheThatIsBehindFailsNoMigration(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.node("n2")
	first := w.vm("first", "n1", kubevirt.StrategyLiveMigrate, migratable)
	g := w.gate("/api/v1/pods")
	w.controller("--leader-elect=false", "--kubeconfig="+g.kubeconfig, "--controllers=migration")
	w.keeps(first, 1) // its caches are filled

	g.shut.Lock()
	defer g.shut.Unlock()
	w.vm("vm", "n1", kubevirt.StrategyLiveMigrate, migratable)
	m := w.Migrate("m", "vm")
	w.eventually("the migration begins or fails", func() bool {
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		return m.Status.Phase == kubevirt.MigrationScheduling || m.Final()
	})
	if m.Final() {
		t.Errorf("%s: %s", m.Status.Phase, m.Status.MigrationState.FailureReason)
	}
}

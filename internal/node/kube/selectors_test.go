package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// RBAC cannot restrict an agent to the objects of its node. So each of its lists and
// watches must select them.
func TestEachListAsksForItsNodesObjectsAlone(t *testing.T) {
	want := map[string]string{
		"pods":                             "fieldSelector=spec.nodeName=node-a&labelSelector=kubevirt.io=virt-launcher",
		"virtualmachineinstances":          "fieldSelector=&labelSelector=kubevirt.io/nodeName=node-a",
		"virtualmachineinstancemigrations": "fieldSelector=&labelSelector=vmgrace.io/source-node=node-a",
		"customresourcedefinitions":        "fieldSelector=metadata.name=virtualmachineinstances.kubevirt.io&labelSelector=",
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	all := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		asked := fmt.Sprintf("fieldSelector=%s&labelSelector=%s", r.URL.Query().Get("fieldSelector"), r.URL.Query().Get("labelSelector"))
		mu.Lock()
		defer mu.Unlock()
		if expected := want[kind]; asked != expected && asked != strings.Replace(expected, "source-node", "target-node", 1) {
			t.Errorf("%s: %s", r.URL.Path, asked)
		}
		if seen[asked] = true; len(seen) == len(want)+1 {
			select {
			case <-all:
			default:
				close(all)
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"clusters":[{"name":"x","cluster":{"server":%q}}],"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],"users":[{"name":"x","user":{}}],"current-context":"x"}`, server.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Kubeconfig: config, Node: "node-a", Now: func() grace.Mono { return 0 }, Log: slog.New(slog.DiscardHandler), Changed: func(_, _ string) {}})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	running.Go(func() { NewMigrations(s, "vmgrace-system", func() {}).Run(ctx) })
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		mu.Lock()
		t.Errorf("asked for %v only", seen)
		mu.Unlock()
	}
	cancel()
	running.Wait()
}

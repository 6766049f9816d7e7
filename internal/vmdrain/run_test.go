package vmdrain

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// busy refuses the first n requests, as an API server whose storage is being
// initialized does, and counts all of them.
func busy(t *testing.T, n int32, after string) (*rest.RESTClient, *atomic.Int32) {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked.Add(1) > n {
			_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}})
			return
		}
		err := apierrors.NewTooManyRequests("not now", 1)
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(err.Status())
	}))
	t.Cleanup(server.Close)
	cfg := ofCalls(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	if cfg.Timeout != patience {
		t.Errorf("a call is bound by %v", cfg.Timeout)
	}
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, &asked
}

// The library would ask again by itself, ten times, and sleep in between.
func TestAnEvictionThatIsRefusedComesBackAtOnce(t *testing.T) {
	c, asked := busy(t, 1, "1")
	r := reply(c.Post().AbsPath("/api/v1/namespaces/default/pods/a/eviction").Do(t.Context()).Error())
	if asked.Load() != 1 || r.Code != http.StatusTooManyRequests {
		t.Errorf("asked %d times: %+v", asked.Load(), r)
	}
}

func TestAnyOtherRequestThatIsRefusedForNowIsAskedAgain(t *testing.T) {
	c, asked := busy(t, 2, "0")
	if err := c.Get().AbsPath("/api/v1/pods").Do(t.Context()).Error(); err != nil || asked.Load() != 3 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

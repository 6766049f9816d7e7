package vmdrain

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The library would ask again by itself, ten times, and sleep in between.
func TestAnAnswerThatNamesATimeComesBackAtOnce(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 1)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(err.Status())
	}))
	defer server.Close()
	cfg := ofCalls(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := reply(c.Post().AbsPath("/evict").Do(t.Context()).Error())
	if asked.Load() != 1 || r.Code != http.StatusTooManyRequests {
		t.Errorf("asked %d times: %+v", asked.Load(), r)
	}
	if cfg.Timeout != patience {
		t.Errorf("a call is bound by %v", cfg.Timeout)
	}
}

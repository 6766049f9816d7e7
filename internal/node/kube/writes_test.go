package kube

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/podcondition"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// refusing is an API server that refuses each request.
type refusing struct{}

func (refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
}

// Given a tenant who changes for an hour what the agent writes about one VM. Then the agent tries no
// more than the limit, of both conditions together, and another VM's are written.
func TestATenantCausesFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Log: slog.New(slog.DiscardHandler), Now: func() grace.Mono { return 0 }})
		client, err := rest.RESTClientFor(&rest.Config{Transport: refusing{}, ContentConfig: rest.ContentConfig{
			GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()),
		}})
		if err != nil {
			t.Fatal(err)
		}
		s.client.Store(client)
		const changes = time.Hour / (500 * time.Millisecond)
		tried := 0
		for n := range int(changes) {
			if n%2 == 0 {
				err = s.SetShuttingDown(t.Context(), podcondition.Pod{Namespace: "ns", Name: "pod", Domain: "ns_vm"}, podcondition.Condition{})
			} else {
				err = s.SetLiveMigratable(t.Context(), migratable.VMI{Namespace: "ns", Name: "vm"}, migratable.Verdict{Message: "x"})
			}
			if !errors.Is(err, errTooOften) {
				tried++
			}
			<-time.After(500 * time.Millisecond)
		}
		if most := writeBurst + int(time.Hour/writeEvery); tried > most || tried < writeBurst {
			t.Errorf("%d writes of one VM in an hour, want %d at most", tried, most)
		}
		if err := s.SetLiveMigratable(t.Context(), migratable.VMI{Namespace: "ns", Name: "other"}, migratable.Verdict{}); errors.Is(err, errTooOften) {
			t.Errorf("another VM: %v", err)
		}
		<-time.After(2 * writeBurst * writeEvery)
		if err := s.writes.take("ns_third"); err != nil || len(s.writes.of) != 1 {
			t.Errorf("%v; %d VMs are remembered", err, len(s.writes.of))
		}
	})
}

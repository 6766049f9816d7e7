package webhookcerts

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// Given no certificate and an API server that is away for a minute. Each try makes RSA
// keys, so the tries get rarer. 12 s after the server's return there is a certificate.
func TestAnAPIServerThatIsAwayCostsFewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var back atomic.Bool
		api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if tries.Add(1); !back.Load() {
					return errors.New("connection refused")
				}
				return c.Create(ctx, o, opts...)
			},
		}).Build()
		k := New(Config{Namespace: "ns", Validity: time.Hour})
		o := controllerOptions()
		o.Reconciler, o.SkipNameValidation = &reconciler{k, api, new(meter)}, new(true)
		c, err := controller.NewTypedUnmanaged("certificate", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Watch(initial(k.request()[0])); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Start(ctx) }()
		<-time.After(time.Minute)
		if n := tries.Load(); n < 3 || n > 10 {
			t.Errorf("%d tries in a minute, want 3 to 10", n)
		}
		back.Store(true)
		<-time.After(12 * time.Second)
		synctest.Wait()
		if err := k.Ready(nil); err != nil {
			t.Errorf("12 s after the API server's return: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

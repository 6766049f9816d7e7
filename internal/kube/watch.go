package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	listTimeout = 20 * time.Second
	// openTimeout is how long a watch may take to begin.
	openTimeout = 20 * time.Second
	// expiryMargin is how long a watch may outlast the timeout that was asked of the server.
	expiryMargin = time.Minute
)

// source lists and watches one resource for a reflector, and keeps health up to
// date.
type source struct {
	client   *rest.RESTClient
	resource resource
	labels   string
	fields   string
	health   *health
	failing  func(error) // may be nil
}

// IsWatchListSemanticsUnSupported keeps the reflector from the newer way to
// list, by a watch: what stands between us and the server may not know it.
func (*source) IsWatchListSemanticsUnSupported() bool { return true }

// List is for the library.
func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is for the library.
func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext gets all objects that the selectors pick.
func (s *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	s.health.pending(s.resource.plural)
	text, err := s.request(&o).Do(ctx).Raw()
	var l *objectList
	if err == nil {
		l, err = readList(text, s.resource.kind+"List")
	}
	if err != nil {
		return nil, s.failed(ctx, "list", err)
	}
	return l, nil
}

// WatchWithContext begins to watch them.
func (s *source) WatchWithContext(parent context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(parent)
	timer := time.AfterFunc(openTimeout, cancel)
	lasts := expiryMargin
	if o.TimeoutSeconds != nil {
		lasts += time.Duration(*o.TimeoutSeconds) * time.Second
	}
	o.Watch = true
	s.health.pending(s.resource.plural)
	w, err := s.request(&o).Watch(ctx)
	if err == nil {
		// Where the request times out the library returns a watch that has
		// ended, and no error.
		if _, open := w.(*watch.StreamWatcher); !open || !timer.Reset(lasts) {
			w.Stop()
			err = errEndedEarly
		}
	}
	if err != nil {
		timer.Stop()
		cancel()
		return nil, s.failed(parent, "watch", err)
	}
	s.health.established(s.resource.plural)
	return &bounded{w, func() { timer.Stop(); cancel() }}, nil
}

func (s *source) request(o *metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = s.labels, s.fields
	return s.resource.of(s.client.Get()).SpecificallyVersionedParams(o, metav1.ParameterCodec, metav1.SchemeGroupVersion).MaxRetries(0)
}

func (s *source) failed(ctx context.Context, verb string, err error) error {
	if !expired(err) && !errors.Is(ctx.Err(), context.Canceled) {
		s.health.failed(s.resource.plural, verb, err)
		if s.failing != nil {
			s.failing(err)
		}
	}
	return fmt.Errorf("%s %s: %w", verb, s.resource.plural, err)
}

var errEndedEarly = errors.New("the watch did not start: no response in time, or the connection was closed")

// bounded is a watch that gives back its context.
type bounded struct {
	watch.Interface
	release func()
}

// Stop ends the watch.
func (b *bounded) Stop() {
	b.Interface.Stop()
	b.release()
}

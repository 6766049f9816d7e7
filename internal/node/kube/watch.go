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
	// watchTimeout is longer than any timeout that the reflector requests, at most
	// 10 minutes.
	watchTimeout = 11 * time.Minute
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

// IsWatchListSemanticsUnSupported keeps the reflector from listing by a watch: a
// proxy before the server may not know that.
func (*source) IsWatchListSemanticsUnSupported() bool { return true }

// list gets all objects that the selectors pick.
func (s *source) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
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

// watch starts a watch of them.
func (s *source) watch(parent context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithTimeout(parent, watchTimeout)
	o.Watch = true
	s.health.pending(s.resource.plural)
	w, err := s.request(&o).Watch(ctx)
	if err == nil {
		// If the request times out, the library returns an ended watch and no
		// error.
		if _, open := w.(*watch.StreamWatcher); !open {
			err = errEndedEarly
		}
	}
	if err != nil {
		cancel()
		return nil, s.failed(parent, "watch", err)
	}
	s.health.established(s.resource.plural)
	return &bounded{w, cancel}, nil
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

// bounded is a watch that releases its context when stopped.
type bounded struct {
	watch.Interface
	release context.CancelFunc
}

// Stop ends the watch.
func (b *bounded) Stop() {
	b.Interface.Stop()
	b.release()
}

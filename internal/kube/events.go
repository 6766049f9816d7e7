package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	component = "node-agent"

	maxQueue   = 4096
	maxNames   = 4 * maxQueue // how many Events are known to have been told
	maxMessage = 1024
	// maxInstance is the API server's bound on reportingInstance.
	maxInstance = 128

	postTimeout = 10 * time.Second
	firstPause  = 500 * time.Millisecond
	lastPause   = 5 * time.Second
)

// outbox holds the Events that the API server has not taken yet, and sees to
// it that each is told once: its name follows from what it says.
//
// What is not told soon goes onto the shelf, where it survives a restart.
type outbox struct {
	log    *slog.Logger
	shelf  Shelf // nil: Events live as long as the agent
	added  chan struct{}
	unkept chan struct{}

	mu    sync.Mutex
	queue []Event
	known map[string]bool
	order []string        // of known, oldest first
	full  bool            // and this was said
	kept  map[string]bool // on the shelf
	// useless is on the shelf, too: what was dropped from the queue.
	useless []string
	// changed is closed when the queue or the shelf has changed.
	changed chan struct{}
}

func newOutbox(log *slog.Logger, shelf Shelf) *outbox {
	return &outbox{
		log: log, shelf: shelf, added: make(chan struct{}, 1), unkept: make(chan struct{}, 1),
		known: map[string]bool{}, kept: map[string]bool{}, changed: make(chan struct{}),
	}
}

func (o *outbox) add(e Event) {
	e.Message = cut(e.Message, maxMessage)
	o.mu.Lock()
	defer o.mu.Unlock()
	name := e.name()
	if o.known[name] {
		return
	}
	o.known[name] = true
	if o.order = append(o.order, name); len(o.order) > maxNames {
		delete(o.known, o.order[0])
		o.order = o.order[1:]
	}
	if o.queue = append(o.queue, e); len(o.queue) > maxQueue {
		if dropped := o.queue[0].name(); o.kept[dropped] {
			delete(o.kept, dropped)
			o.useless = append(o.useless, dropped)
		}
		o.queue = o.queue[1:]
		if !o.full {
			o.full = true
			o.log.Warn("too many Events wait for the API server; the oldest are dropped", "kept", maxQueue)
		}
	}
	for _, wake := range []chan struct{}{o.added, o.unkept} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// first gives the next Event, without taking it out.
func (o *outbox) first() (Event, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.queue, o.full = nil, false
		return Event{}, false
	}
	return o.queue[0], true
}

// done takes an Event out, which may have been dropped meanwhile.
func (o *outbox) done(e Event) {
	o.mu.Lock()
	if len(o.queue) > 0 && o.queue[0] == e {
		o.queue = o.queue[1:]
	}
	kept := o.kept[e.name()]
	delete(o.kept, e.name())
	o.news()
	o.mu.Unlock()
	if kept {
		o.unshelve(e.name())
	}
}

// later puts the Events of one VMI behind all others, in their order, so that
// one that is always refused holds up nobody else.
func (o *outbox) later(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(o.queue), func(e Event) bool { return e.UID == uid })
	its := slices.DeleteFunc(o.queue, func(e Event) bool { return e.UID != uid })
	o.queue = append(others, its...)
}

// verdict is what became of an Event that was sent.
type verdict int

const (
	again   verdict = iota // nobody took it; try later
	told                   // it is there
	refused                // it will never be taken
)

// deliver sends Events in their order until ctx ends.
func (o *outbox) deliver(ctx context.Context, post func(context.Context, Event) (verdict, error)) {
	pause := firstPause
	for {
		e, ok := o.next(ctx)
		if !ok {
			return
		}
		switch v, err := post(ctx, e); v {
		case again:
			if ctx.Err() != nil {
				return
			}
			if pause == firstPause {
				o.log.Warn("Events wait until the API server takes them", "err", err)
			}
			o.later(e.UID)
			if !sleep(ctx, pause) {
				return
			}
			pause = min(2*pause, lastPause)
			continue
		case refused:
			o.log.Warn("the API server refuses an Event; it is dropped",
				"namespace", e.Namespace, "name", e.Name, "reason", e.Reason, "err", err)
		case told:
		}
		o.done(e)
		pause = firstPause
	}
}

// next waits for an Event. It returns false if ctx ends first.
func (o *outbox) next(ctx context.Context) (Event, bool) {
	for {
		if e, ok := o.first(); ok {
			return e, ctx.Err() == nil
		}
		select {
		case <-o.added:
		case <-ctx.Done():
			return Event{}, false
		}
	}
}

// post sends one Event.
func (s *Source) post(ctx context.Context, e Event) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	o := e.object(s.node)
	text, err := json.Marshal(o)
	if err != nil {
		return refused, fmt.Errorf("encode it: %w", err)
	}
	a, err := ask(ctx, s.clients.core.Post().Namespace(e.Namespace).Resource("events").SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text))
	if err != nil {
		return again, err
	}
	return a.verdict(o)
}

// verdict believes only an API server that it will never take this Event.
func (a answer) verdict(o *coreEvent) (verdict, error) {
	if a.code == http.StatusCreated {
		return told, nil
	}
	st, err := a.status()
	if err != nil {
		return again, err
	}
	err = fmt.Errorf("status %d: %s %.300s", a.code, st.Reason, st.Message)
	about := metav1.StatusDetails{}
	if st.Details != nil {
		about = *st.Details
	}
	switch st.Reason {
	case metav1.StatusReasonAlreadyExists:
		return told, nil
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonRequestEntityTooLarge:
		return refused, err
	case metav1.StatusReasonNotFound: // the namespace
		if about.Kind == "namespaces" && about.Name == o.Namespace {
			return refused, err
		}
	case metav1.StatusReasonForbidden:
		// By admission: the namespace ends, or has a quota. A missing right
		// names no object, and may come back.
		if about.Name == o.Name {
			return refused, err
		}
	default:
	}
	return again, err
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

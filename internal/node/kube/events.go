package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/internal/node/agent"
)

const (
	component = "node-agent"

	maxQueue   = 4096
	maxMessage = 1024

	postTimeout = 10 * time.Second
	firstPause  = 500 * time.Millisecond
	lastPause   = 5 * time.Second
)

// outbox queues the Events that the API server has not accepted yet, as long as
// the agent runs. client-go's own recorder would merge similar Events, drop the
// last ones of a flood, and give up after two minutes.
type outbox struct {
	log *slog.Logger

	mu      sync.Mutex
	queue   []agent.Event
	full    bool          // full, and logged as such
	changed chan struct{} // closed when the queue has changed
}

func newOutbox(log *slog.Logger) *outbox {
	return &outbox{log: log, changed: make(chan struct{})}
}

func (o *outbox) add(e agent.Event) {
	e.Message = cut(e.Message, maxMessage)
	o.edit(func(queue []agent.Event) []agent.Event {
		if len(queue) < maxQueue {
			o.full = false
			return append(queue, e)
		}
		if !o.full {
			o.full = true
			o.log.Warn("too many Events wait for the API server; the oldest are dropped", "kept", maxQueue)
		}
		return append(queue[1:], e)
	})
}

func (o *outbox) edit(f func([]agent.Event) []agent.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = f(o.queue)
	close(o.changed)
	o.changed = make(chan struct{})
}

// wait waits until asked returns true for the queue. It returns false if ctx
// ends first.
func (o *outbox) wait(ctx context.Context, asked func(queue []agent.Event) bool) bool {
	for {
		o.mu.Lock()
		is, changed := asked(o.queue), o.changed
		o.mu.Unlock()
		if is {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// flush waits until the queue holds no Event of a VM, or ctx ends.
func (o *outbox) flush(ctx context.Context, namespace, name string) {
	o.wait(ctx, func(queue []agent.Event) bool {
		return !slices.ContainsFunc(queue, func(e agent.Event) bool { return e.Namespace == namespace && e.Name == name })
	})
}

// verdict is the outcome of sending an Event.
type verdict int

const (
	retry     verdict = iota // not accepted: try again later
	delivered                // the API server has it
	refused                  // the API server will never accept it
)

// deliver sends Events in their order until ctx ends. If one must be retried,
// its VMI's Events move behind those of other VMIs.
func (o *outbox) deliver(ctx context.Context, post func(context.Context, agent.Event) (verdict, error)) {
	pause := firstPause
	for {
		var e agent.Event
		if !o.wait(ctx, func(queue []agent.Event) bool {
			if len(queue) > 0 {
				e = queue[0]
			}
			return len(queue) > 0
		}) {
			return
		}
		v, err := post(ctx, e)
		if v == retry {
			if ctx.Err() != nil {
				return
			}
			if pause == firstPause {
				o.log.Warn("Events wait until the API server takes them", "err", err)
			}
			o.edit(func(queue []agent.Event) []agent.Event { return lastOf(queue, e.UID) })
			sleep(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		if v == refused {
			o.log.Warn("the API server refuses an Event; it is dropped",
				"namespace", e.Namespace, "name", e.Name, "reason", e.Reason, "err", err)
		}
		o.edit(func(queue []agent.Event) []agent.Event {
			return slices.DeleteFunc(queue, func(other agent.Event) bool { return other == e })
		})
		pause = firstPause
	}
}

// lastOf moves the Events of one VMI behind all others, in their order.
func lastOf(queue []agent.Event, uid string) []agent.Event {
	others := slices.DeleteFunc(slices.Clone(queue), func(e agent.Event) bool { return e.UID == uid })
	its := slices.DeleteFunc(queue, func(e agent.Event) bool { return e.UID != uid })
	return append(others, its...)
}

// post sends one Event.
func (s *Source) post(ctx context.Context, e agent.Event) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	a, err := s.create(ctx, events(), e.Namespace, s.eventObject(e))
	if err != nil {
		return retry, err
	}
	return a.verdict(e)
}

// eventObject returns the core/v1 Event.
func (s *Source) eventObject(e agent.Event) map[string]any {
	severity := "Normal"
	if e.Warning {
		severity = "Warning"
	}
	at := metav1.NewTime(e.At)
	about := map[string]any{
		"apiVersion": vmis().version().String(), "kind": vmis().kind,
		"namespace": e.Namespace, "name": e.Name, "uid": e.UID,
	}
	if e.OfNode {
		about = map[string]any{"apiVersion": "v1", "kind": "Node", "name": e.Name, "uid": e.UID}
	}
	return map[string]any{
		"metadata":       map[string]any{"namespace": e.Namespace, "name": eventName(e)},
		"involvedObject": about,
		"reason":         e.Reason, "message": e.Message, "type": severity,
		"source":         map[string]any{"component": component, "host": s.node},
		"firstTimestamp": at, "lastTimestamp": at, "count": 1,
		"reportingComponent": component, "reportingInstance": s.node,
	}
}

// eventName returns the same name for the same Event, even after a restart. So
// an Event that is sent twice exists once.
func eventName(e agent.Event) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{e.UID, e.Reason, e.Key}, "\x00")))
	const room = 200 // of the 253 that a name may have
	return fmt.Sprintf("%s.%x", strings.TrimRight(cut(e.Name, room), "-."), sum[:8])
}

// verdict returns refused only if an API server's own Status says so of this
// Event.
func (a answer) verdict(e agent.Event) (verdict, error) {
	if a.code == http.StatusCreated {
		return delivered, nil
	}
	st, err := a.status()
	if err != nil {
		return retry, err
	}
	var about metav1.StatusDetails
	if st.Details != nil {
		about = *st.Details
	}
	err = fmt.Errorf("status %d: %s %.300s", a.code, st.Reason, st.Message)
	switch st.Reason {
	case metav1.StatusReasonAlreadyExists:
		return delivered, nil
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonRequestEntityTooLarge:
		return refused, err
	case metav1.StatusReasonNotFound: // the namespace
		if about.Kind == "namespaces" && about.Name == e.Namespace {
			return refused, err
		}
	case metav1.StatusReasonForbidden:
		// Admission refused it: the namespace is terminating, or has a quota.
		// RBAC names no object, and a missing right may come back.
		if about.Name == eventName(e) {
			return refused, err
		}
	default:
	}
	return retry, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

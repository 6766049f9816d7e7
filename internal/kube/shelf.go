package kube

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Shelf keeps Events over a restart. Its methods may block.
type Shelf interface {
	Put(name string, content []byte) error
	// Delete is no error where there is nothing.
	Delete(name string) error
	All() ([][]byte, error)
}

// shelfDelay: most Events are told before they need a place on the shelf.
const shelfDelay = 200 * time.Millisecond

// keep puts on the shelf what is not told soon, until ctx ends.
func (o *outbox) keep(ctx context.Context) {
	if o.shelf == nil {
		return
	}
	o.restore()
	for ctx.Err() == nil {
		select {
		case <-o.unkept:
			sleep(ctx, shelfDelay)
		case <-ctx.Done():
		}
		o.keepAll()
	}
}

// restore queues what an earlier agent could not tell.
func (o *outbox) restore() {
	contents, err := o.shelf.All()
	if err != nil {
		o.log.Warn("cannot read the Events that an earlier agent has kept", "err", err)
	}
	var events []Event
	for _, c := range contents {
		var e Event
		if err := json.Unmarshal(c, &e); err != nil || e.UID == "" {
			o.log.Warn("an Event that was kept cannot be read; it is left where it is", "err", err)
			continue
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	for _, e := range events {
		o.mu.Lock()
		o.kept[e.name()] = true
		o.mu.Unlock()
		o.add(e)
	}
}

// keepAll puts the Events that wait on the shelf.
func (o *outbox) keepAll() {
	o.mu.Lock()
	useless := o.useless
	o.useless = nil
	o.mu.Unlock()
	for _, name := range useless {
		o.unshelve(name)
	}
	for {
		e, ok := o.firstUnkept()
		if !ok {
			return
		}
		content, err := json.Marshal(e)
		if err == nil {
			err = o.shelf.Put(e.name(), content)
		}
		o.mu.Lock()
		told := !slices.Contains(o.queue, e)
		if err == nil && !told {
			o.kept[e.name()] = true
		}
		o.news()
		o.mu.Unlock()
		switch {
		case err != nil:
			o.log.Warn("cannot keep an Event over a restart; it is told as long as this agent lives", "err", err)
			return
		case told: // meanwhile
			o.unshelve(e.name())
		}
	}
}

func (o *outbox) firstUnkept() (Event, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.queue, func(e Event) bool { return !o.kept[e.name()] })
	if i < 0 || len(o.kept) >= maxQueue {
		return Event{}, false
	}
	return o.queue[i], true
}

func (o *outbox) unshelve(name string) {
	if err := o.shelf.Delete(name); err != nil {
		o.log.Warn("an Event that was told is still kept; the API server will refuse it the next time", "err", err)
	}
}

// settle waits until the Events of a VM are told or kept, or ctx ends.
func (o *outbox) settle(ctx context.Context, namespace, name string) {
	for o.shelf != nil {
		o.mu.Lock()
		waiting := slices.ContainsFunc(o.queue, func(e Event) bool {
			return e.Namespace == namespace && e.Name == name && !o.kept[e.name()]
		})
		changed := o.changed
		o.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// news wakes who waits for the queue; the caller holds the lock.
func (o *outbox) news() {
	close(o.changed)
	o.changed = make(chan struct{})
}

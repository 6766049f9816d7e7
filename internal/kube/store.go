package kube

import (
	"fmt"
	"sync"
)

// store is where a reflector puts its objects; it keeps no more of each than a
// T. The zero T is "nothing". It is a cache.ReflectorStore.
type store[T comparable] struct {
	// strip takes from an object what counts, knowing what was known of it.
	strip func(o *object, was T) T
	// notify is called with each change, with no lock held.
	notify func(was, is T)

	mu     sync.RWMutex
	byName map[key]T // by the object's own name
	listed bool
}

func (s *store[T]) get(k key) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName[k]
	return t, ok
}

// all calls visit with each of them.
func (s *store[T]) all(visit func(T)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.byName {
		visit(t)
	}
}

func (s *store[T]) synced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.listed
}

// change is what was, and is, known of one object.
type change[T any] struct{ was, is T }

// put stores what is known of an object now, and adds that to the changes if it
// is news. The caller holds the lock, and notifies afterwards.
func (s *store[T]) put(k key, is T, changes []change[T]) []change[T] {
	var nothing T
	was := s.byName[k]
	if was == is {
		return changes
	}
	if s.byName == nil {
		s.byName = map[key]T{}
	}
	if s.byName[k] = is; is == nothing {
		delete(s.byName, k)
	}
	return append(changes, change[T]{was, is})
}

func (s *store[T]) notifyAll(changes []change[T]) {
	for _, c := range changes {
		s.notify(c.was, c.is)
	}
}

// edit replaces each of them by what f makes of it.
func (s *store[T]) edit(f func(T) T) {
	var changes []change[T]
	s.mu.Lock()
	for k, was := range s.byName {
		changes = s.put(k, f(was), changes)
	}
	s.mu.Unlock()
	s.notifyAll(changes)
}

// Add is called for an object that is new.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update is called for an object that has changed.
func (s *store[T]) Update(obj any) error { return s.one(obj, s.strip) }

// Delete is called for an object that is gone, or does not match any more.
func (s *store[T]) Delete(obj any) error {
	return s.one(obj, func(*object, T) (nothing T) { return nothing })
}

func (s *store[T]) one(obj any, strip func(*object, T) T) error {
	o, ok := obj.(*object)
	if !ok {
		return fmt.Errorf("unexpected object of type %T", obj)
	}
	k := key{o.Namespace, o.Name}
	s.mu.Lock()
	changes := s.put(k, strip(o, s.byName[k]), nil)
	s.mu.Unlock()
	s.notifyAll(changes)
	return nil
}

// Replace is called with all objects that there are.
func (s *store[T]) Replace(list []any, _ string) error {
	var nothing T
	var changes []change[T]
	s.mu.Lock()
	if !s.listed {
		s.listed = true
		changes = append(changes, change[T]{}) // what is not in the list is news, too
	}
	there := make(map[key]bool, len(list))
	for _, obj := range list {
		if o, ok := obj.(*object); ok {
			k := key{o.Namespace, o.Name}
			there[k] = true
			changes = s.put(k, s.strip(o, s.byName[k]), changes)
		}
	}
	for k := range s.byName {
		if !there[k] {
			changes = s.put(k, nothing, changes)
		}
	}
	s.mu.Unlock()
	s.notifyAll(changes)
	return nil
}

// Resync is not used.
func (s *store[T]) Resync() error { return nil }

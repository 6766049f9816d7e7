package kube

import (
	"fmt"
	"sync"
)

// store is a cache.ReflectorStore that keeps only a T of each object. The zero
// T means that there is no object.
type store[T comparable] struct {
	// strip makes a T of an object, given the T of its previous version.
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

// all calls visit for each T.
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

// change holds the T of one object before and after.
type change[T any] struct{ was, is T }

// put stores is as the T of an object, and appends a change if it differs. The
// caller holds the lock, and calls notifyAll after it.
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

// edit replaces each T by the result of f.
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

// Delete is called for an object that is gone, or no longer matches.
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

// Replace is called with the full list of objects.
func (s *store[T]) Replace(list []any, _ string) error {
	var nothing T
	var changes []change[T]
	s.mu.Lock()
	if !s.listed {
		s.listed = true
		changes = append(changes, change[T]{}) // an empty change: absent objects are news, too
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

package kube

import (
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// store is where a reflector puts the objects O; it keeps no more of each than
// a T. The zero T is "nothing". It is a cache.ReflectorStore.
type store[O metav1.Object, T comparable] struct {
	// strip takes from an object what counts, knowing what was known of it.
	strip func(o O, was T) T
	// tell hears of each change.
	tell func(was, is T)

	mu     sync.RWMutex
	byName map[vmKey]T // by the object's own name
	listed bool
}

func (s *store[O, T]) get(k vmKey) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName[k]
	return t, ok
}

// all calls visit with each of them.
func (s *store[O, T]) all(visit func(T)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.byName {
		visit(t)
	}
}

func (s *store[O, T]) synced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.listed
}

// Add is called for an object that is new.
func (s *store[O, T]) Add(obj any) error { return s.Update(obj) }

// Update is called for an object that has changed.
func (s *store[O, T]) Update(obj any) error {
	o, err := own[O](obj)
	if err != nil {
		return err
	}
	s.put(o, s.strip)
	return nil
}

// Delete is called for an object that is gone, or does not match any more.
func (s *store[O, T]) Delete(obj any) error {
	o, err := own[O](obj)
	if err != nil {
		return err
	}
	s.put(o, func(O, T) (nothing T) { return nothing })
	return nil
}

func (s *store[O, T]) put(o O, strip func(O, T) T) {
	var nothing T
	k := vmKey{o.GetNamespace(), o.GetName()}
	s.mu.Lock()
	was := s.byName[k]
	is := strip(o, was)
	switch {
	case is == nothing:
		delete(s.byName, k)
	case s.byName == nil:
		s.byName = map[vmKey]T{k: is}
	default:
		s.byName[k] = is
	}
	s.mu.Unlock()
	if was != is {
		s.tell(was, is)
	}
}

// Replace is called with all objects that there are.
func (s *store[O, T]) Replace(list []any, _ string) error {
	var nothing T
	s.mu.Lock()
	before, after := s.byName, make(map[vmKey]T, len(list))
	for _, obj := range list {
		o, err := own[O](obj)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		k := vmKey{o.GetNamespace(), o.GetName()}
		if is := s.strip(o, before[k]); is != nothing {
			after[k] = is
		}
	}
	first := !s.listed
	s.byName, s.listed = after, true
	s.mu.Unlock()
	for k, is := range after {
		if was := before[k]; was != is {
			s.tell(was, is)
		}
	}
	if first {
		s.tell(nothing, nothing) // what is not in the list is news, too
	}
	for k, was := range before {
		if _, has := after[k]; !has {
			s.tell(was, nothing)
		}
	}
	return nil
}

// Resync is not used.
func (s *store[O, T]) Resync() error { return nil }

func own[O any](obj any) (O, error) {
	o, ok := obj.(O)
	if !ok {
		return o, fmt.Errorf("a %T, which nobody asked for", obj)
	}
	return o, nil
}

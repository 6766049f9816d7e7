package kube

import (
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A tenant can change what the agent writes about its VM any number of times. So each VM has a few
// writes at once, then one every so often, whatever they say.
const (
	writeBurst = 10
	writeEvery = 30 * time.Second
)

var errTooOften = errors.New("it has changed too often, and waits")

// writes limits those about each VM.
type writes struct {
	mu sync.Mutex
	of map[string]*rate.Limiter // by domain
}

// take takes one. A VM that has all of them again is forgotten.
func (w *writes) take(domain string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]*rate.Limiter{}
	}
	maps.DeleteFunc(w.of, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= writeBurst })
	l := w.of[domain]
	if l == nil {
		l = rate.NewLimiter(rate.Every(writeEvery), writeBurst)
		w.of[domain] = l
	}
	if !l.Allow() {
		return errTooOften
	}
	return nil
}

package migrate

import (
	"log/slog"
	"sync"
	"time"
)

// refusalInterval is the shortest time between two log lines of one kind.
const refusalInterval = time.Minute

// refusals logs what other hosts are refused: one line in refusalInterval, with the number
// of refusals left out before it. The metrics count all of them.
type refusals struct {
	mu      sync.Mutex
	next    map[string]time.Time // by message
	leftOut map[string]int
}

// warn logs a refusal, or counts it for a later line.
func (r *refusals) warn(log *slog.Logger, message, from string, err error) {
	leftOut, due := r.take(message, time.Now())
	if !due {
		return
	}
	log.Warn(message, "from", from, "err", err, "leftOut", leftOut) //nolint:sloglint // a constant of the caller's
}

func (r *refusals) take(message string, now time.Time) (leftOut int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next, r.leftOut = map[string]time.Time{}, map[string]int{}
	}
	if now.Before(r.next[message]) {
		r.leftOut[message]++
		return 0, false
	}
	leftOut = r.leftOut[message]
	r.next[message], r.leftOut[message] = now.Add(refusalInterval), 0
	return leftOut, true
}

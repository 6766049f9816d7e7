package logs

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Each message may pass a few times at once, then once a minute with the number of lines
// left out. No text is longer than maxBytes.
const (
	burst    = 10
	every    = time.Minute
	maxBytes = 256
)

// limiter is a handler that leaves lines out.
type limiter struct {
	slog.Handler
	shared *budgets
}

// budgets has one budget per message. Messages are constants of this program.
type budgets struct {
	mu   sync.Mutex
	used map[string]*budget
}

type budget struct {
	reserved time.Time // until when lines are used up; at most a burst ahead
	leftOut  int
}

// Limited returns a logger that writes to the same place, with a budget for each message.
// So a tenant that causes the same line again and again neither fills the disk nor hides
// the lines of a shutdown. Loggers made from it share the budgets. Debug lines are not
// limited: -v asks for all of them.
func Limited(log *slog.Logger) *slog.Logger {
	return slog.New(limiter{log.Handler(), &budgets{used: map[string]*budget{}}})
}

// Handle passes the record on, unless there were too many like it.
func (h limiter) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := 0, true
	if r.Level > slog.LevelDebug {
		leftOut, ok = h.shared.pass(r.Message, r.Time)
	}
	if !ok {
		return nil
	}
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(short(a))
		return true
	})
	if leftOut > 0 {
		out.AddAttrs(slog.Int("leftOut", leftOut))
	}
	return h.Handler.Handle(ctx, out)
}

// WithAttrs shares the budgets.
func (h limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limiter{h.Handler.WithAttrs(attrs), h.shared}
}

// WithGroup shares the budgets.
func (h limiter) WithGroup(name string) slog.Handler {
	return limiter{h.Handler.WithGroup(name), h.shared}
}

func (b *budgets) pass(message string, now time.Time) (leftOut int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.used[message]
	if u == nil {
		u = &budget{}
		b.used[message] = u
	}
	if now.Before(u.reserved.Add(-(burst - 1) * every)) {
		u.leftOut++
		return 0, false
	}
	if u.reserved.Before(now) {
		u.reserved = now
	}
	u.reserved = u.reserved.Add(every)
	leftOut, u.leftOut = u.leftOut, 0
	return leftOut, true
}

// short cuts a text that a tenant may have written.
func short(a slog.Attr) slog.Attr {
	text := a.Value.String()
	if len(text) <= maxBytes {
		return a
	}
	return slog.String(a.Key, strings.ToValidUTF8(text[:maxBytes], "")+"…")
}

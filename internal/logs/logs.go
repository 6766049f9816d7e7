// Package logs makes the loggers of all programs of the project. A duration has its unit
// ("1.5s"): JSON would have bare nanoseconds.
package logs

import (
	"io"
	"log/slog"
)

// New returns a logger that writes to w in a format, "json" or "text". From a verbosity
// of 1 on it writes debug lines.
func New(w io.Writer, format string, verbosity int) *slog.Logger {
	opts := &slog.HandlerOptions{ReplaceAttr: durationText}
	if verbosity > 0 {
		opts.Level = slog.LevelDebug
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func durationText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

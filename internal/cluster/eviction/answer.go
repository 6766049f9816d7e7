package eviction

import (
	"log/slog"

	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// verdict returns the metric's label. An answer after an error counts as failed.
func verdict(a evacuation.Admission) string {
	if failed(a) {
		return "failed"
	}
	return string(a.Verdict)
}

func failed(a evacuation.Admission) bool { return a.Reason == "Unreadable" || a.Reason == "MarkFailed" }

// level returns the log level. A drain retries every 5 s, so only marks are logged as
// info.
func level(a evacuation.Admission) slog.Level {
	switch {
	case failed(a):
		return slog.LevelWarn
	case a.Verdict == evacuation.Mark:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

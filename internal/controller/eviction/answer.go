package eviction

import (
	"log/slog"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// verdict is the metric's: an answer for want of a better one is a failure.
func verdict(a evacuation.Admission) string {
	if failed(a) {
		return "failed"
	}
	return string(a.Verdict)
}

func failed(a evacuation.Admission) bool { return a.Reason == "Unreadable" || a.Reason == "MarkFailed" }

// level: a drain asks every 5 s, and is told each time; marks are news.
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

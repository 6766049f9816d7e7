package eviction

import (
	"log/slog"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

func admissionResponse(s *metav1.Status) admissionv1.AdmissionResponse {
	return admissionv1.AdmissionResponse{Allowed: false, Result: s}
}

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

package signals

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func BenchmarkEncodeStatus(b *testing.B) {
	s := grace.Status{
		UID: "b7c6a1d2-0000-4000-8000-000000000001", Phase: grace.ShuttingDown, Cause: grace.LauncherSignal,
		StartedAt: time.Unix(1, 0), Deadline: time.Unix(31, 0),
	}
	b.ReportAllocs()
	for b.Loop() {
		EncodeStatus(s)
	}
}

func BenchmarkDecodeVM(b *testing.B) {
	data := VM{Namespace: "ns", Name: "vm", UID: "b7c6a1d2-0000-4000-8000-000000000001", Grace: "30"}.Encode()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseVM(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeTrigger(b *testing.B) {
	data := Trigger{UID: "b7c6a1d2-0000-4000-8000-000000000001", Signal: "SIGTERM", Time: time.Unix(1, 0)}.Encode()
	b.ReportAllocs()
	for b.Loop() {
		if TriggerUID(data) == "" {
			b.Fatal("not a trigger")
		}
	}
}

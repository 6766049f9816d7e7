package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQuantilesAreValuesThatWereMeasured(t *testing.T) {
	values := make([]float64, 0, 200)
	for n := range 200 {
		values = append(values, float64(200-n))
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 101, 0.99: 199, 1: 200} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
}

func TestALineHasMediansSpreadAndRatiosOfTheSameRun(t *testing.T) {
	var text strings.Builder
	err := page(&text, options{rounds: 3, version: "v1, today"}, []figure{{
		row: "a", what: "a thing", target: "≤ 2 × floor", unit: seconds,
		ours: []float64{0.003, 0.001, 0.002}, floor: []float64{0.001}, peerName: "other",
	}}, "| a | measured before | v0 |\n| b | not measured now | v0 |\n")
	want := "| a | a thing | 2.00 ms (1.00 ms … 3.00 ms) | 1.00 ms | 2.00 × | other: – | – | ≤ 2 × floor | v1, today |\n| b | not measured now | v0 |\n"
	if err != nil || !strings.Contains(text.String(), want) {
		t.Errorf("%v\n%s\nis without\n%s", err, text.String(), want)
	}
}

func TestWhatPeopleWroteBelowTheFiguresStays(t *testing.T) {
	o := options{out: filepath.Join(t.TempDir(), "page.md")}
	for _, figures := range []string{"old\n\n## Remarks\n\nOf a person.\n\n## More\n", "new\n"} {
		if err := o.write(func(w io.Writer, _ string) error { _, err := io.WriteString(w, figures); return err }); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(o.out)
	if want := "new\n\n## Remarks\n\nOf a person.\n\n## More\n"; err != nil || string(text) != want {
		t.Errorf("%v\n%q, want\n%q", err, text, want)
	}
}

func TestTheContainersShareIsTheManifests(t *testing.T) {
	manifest, err := os.ReadFile("../../" + daemonSet)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := shipped(manifest); err != nil || got != (share{100, "268435456"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, wrong := range []string{"", "kind: Pod", strings.Replace(string(manifest), "privileged: true", "privileged: false", 1),
		strings.Replace(string(manifest), "cpu: 100m", "cpu: 1", 1)} {
		if got, err := shipped([]byte(wrong)); err == nil {
			t.Errorf("%.20q has the share %+v", wrong, got)
		}
	}
}

func TestBenchmarksAreReadByNameAndUnit(t *testing.T) {
	got := benchmarks([]byte("goos: linux\nBenchmarkMove/agents-2 \t 1\t 3 ns/op\t 0.2 s-downtime\t 3.5 s-total\n" +
		"BenchmarkMove/agents#01-2 \t 1\t 4 ns/op\t 0.3 s-downtime\t 3.6 s-total\nBenchmarkMove/virsh-native \t 1\t 5 ns/op\t 3.1 s-total\nPASS\n"))
	if a, v := got["Move/agents s-total"], got["Move/virsh-native s-total"]; !slices.Equal(a, []float64{3.5, 3.6}) || !slices.Equal(v, []float64{3.1}) {
		t.Errorf("%v, %v", a, v)
	}
}

func TestAVMInItsPodIsMeasuredBesideTheOtherKindAndVirsh(t *testing.T) {
	figures := moved(benchmarks([]byte("BenchmarkMove/tunnelled/pod-2 \t 1\t 3 ns/op\t 0.15 s-downtime\t 0.9 s-total\n" +
		"BenchmarkMove/tunnelled/virsh-2 \t 1\t 3 ns/op\t 0.05 s-downtime\t 1.8 s-total\n" +
		"BenchmarkRelay/tunnelled-2 \t 1\t 3 ns/op\t 2.0 MiB-more-target\t 2.0 cpu-s/GiB-target\n" +
		"BenchmarkRelay/pod-2 \t 1\t 3 ns/op\t 1.0 MiB-more-target\t 1.5 cpu-s/GiB-target\n")))
	page := lines(figures, "l", "v1")
	for _, want := range []string{
		"runs at the target, in its pod | 900.00 ms | – | – | virsh migrate --live, tunnelled: 1.80 s | 0.50 ×",
		"resumed at the target, in its pod | 150.00 ms | – | – | virsh migrate --live, tunnelled: 50.00 ms | 3.00 ×",
		"target's agent while 1 GiB passes, in its pod: CPU | 1.50 s | – | – | of libvirt: 2.00 s | 0.75 ×",
		"target's agent while 1 GiB passes, in its pod: more memory | 1.00 MiB | – | – | of libvirt: 2.00 MiB | 0.50 ×",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%s\nis without\n%s", page, want)
		}
	}
}

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// figure is one line of the table.
type figure struct {
	row, what, target string
	unit              unit
	// ours, floor and peer have one value for each round. A column without values stays
	// empty.
	ours, floor, peer []float64
	peerName          string
}

// unit formats a value for people.
type unit func(float64) string

func seconds(v float64) string {
	switch d := time.Duration(v * float64(time.Second)); {
	case d.Abs() < time.Millisecond:
		return fmt.Sprintf("%.0f µs", v*1e6)
	case d.Abs() < time.Second:
		return fmt.Sprintf("%.2f ms", v*1e3)
	default:
		return fmt.Sprintf("%.2f s", v)
	}
}

func mebibytes(v float64) string { return fmt.Sprintf("%.2f MiB", v/(1<<20)) }
func megabytes(v float64) string { return fmt.Sprintf("%.2f MB", v/1e6) }
func perSecond(v float64) string {
	return fmt.Sprintf("%.*f/s", max(0, 2-int(math.Log10(max(v, 1)))), v)
}
func percent(v float64) string { return fmt.Sprintf("%.3f %%", v*100) }

// quantile returns the quantile q of values, by the nearest rank.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 { return quantile(values, 0.5) }

func (f figure) cell(values []float64) string {
	switch len(values) {
	case 0:
		return "–"
	case 1:
		return f.unit(values[0])
	}
	return fmt.Sprintf("%s (%s … %s)", f.unit(median(values)), f.unit(slices.Min(values)), f.unit(slices.Max(values)))
}

func (f figure) ratio(other []float64) string {
	if len(f.ours) == 0 || len(other) == 0 || median(other) == 0 || median(f.ours) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f ×", median(f.ours)/median(other))
}

// kept returns the lines of an earlier page for a row that this run has not measured.
func kept(old, row string) []string {
	var lines []string
	for line := range strings.Lines(old) {
		if strings.HasPrefix(line, "| "+row+" |") {
			lines = append(lines, line)
		}
	}
	return lines
}

// page writes the figures, and the lines of an earlier page for the rows that this run has
// not measured. Each line names its version.
func page(w io.Writer, o options, figures []figure, old string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Performance\n\nWritten by `make bench`; the floor is `test/bench/floor`. Medians of %d rounds (smallest … largest).\n"+
		"Compare the ratios, not the times: all columns of a line were measured in turns, in one run.\n"+
		"Single steps, with their allocations: `go test -tags libvirt_dlopen -run '^$' -bench . ./internal/... ./pkg/...`.\n\n%s\n\n", o.rounds, machine())
	b.WriteString("| | what | vmgrace | floor | vmgrace : floor | peer | vmgrace : peer | target | of |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, letter := range letters() {
		if !slices.ContainsFunc(figures, func(f figure) bool { return f.row == letter }) {
			b.WriteString(strings.Join(kept(old, letter), ""))
		}
		b.WriteString(lines(figures, letter, o.version))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// lines returns the lines of a row.
func lines(figures []figure, row, version string) string {
	var b strings.Builder
	for _, f := range figures {
		if f.row != row {
			continue
		}
		peer := f.cell(f.peer)
		if f.peerName != "" {
			peer = f.peerName + ": " + peer
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
			f.row, f.what, f.cell(f.ours), f.cell(f.floor), f.ratio(f.floor), peer, f.ratio(f.peer), f.target, version)
	}
	return b.String()
}

// machine returns where and when the figures were measured.
func machine() string {
	var name unix.Utsname
	kernel := "unknown"
	if unix.Uname(&name) == nil {
		kernel = unix.ByteSliceToString(name.Release[:])
	}
	load := "unknown"
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	return fmt.Sprintf("%d cores, Linux %s, %s, %s; load at the end %s.",
		runtime.NumCPU(), kernel, runtime.Version(), time.Now().UTC().Format("2006-01-02 15:04 UTC"), load)
}

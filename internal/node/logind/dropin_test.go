//go:build !unit

package logind

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Given a logind that does not obey its drop-in, then its state is told of before and during the
// attempt, and a shutdown ends the attempt.
func TestLogindsWordDoesNotWaitForTheDropIn(t *testing.T) {
	socket, root := filepath.Join(t.TempDir(), "bus"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc/systemd"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer startBus(t, socket)()
	fake := startLogind(t, socket, 5*time.Second)
	w := watch(t, &Logind{Socket: socket, Wanted: 2 * time.Minute, Root: root})
	w.until("held", delayed(5*time.Second))
	fake.prepare(true)
	w.until("shutdown", down)
	stacks := make([]byte, 1<<20)
	if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte(".lengthen(")) {
		t.Error("the attempt goes on")
	}
	w.stop()
	if strings.Contains(w.lines.String(), "cannot have logind delay shutdowns") {
		t.Error("the attempt went on to its end:", w.lines)
	}
}

func TestADropInThatCannotBeWrittenIsSaid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)()
	startLogind(t, socket, 5*time.Second)
	w := watch(t, &Logind{Socket: socket, Wanted: 2 * time.Minute, Root: "/proc/no/such/root"})
	for range 2 { // before the attempt, and after it
		w.until("held", delayed(5*time.Second))
	}
	w.stop()
	if !strings.Contains(w.lines.String(), "cannot have logind delay shutdowns for --node-shutdown-timeout") {
		t.Error("not said:", w.lines)
	}
}

func TestADropInOnADiskThatHangsIsLeftBehind(t *testing.T) {
	hangs := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := lastPlace(ctx, func() (string, error) { <-hangs; return "", nil })
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
	close(hangs)
}

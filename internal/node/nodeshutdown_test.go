package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func TestTheNodesShutdownOutlivesTheAgentButNotTheBoot(t *testing.T) {
	dir, now := t.TempDir(), clock{}.Now()
	kept := grace.NodeShutdownTime{Begin: now, End: now.Add(time.Minute)}
	file, log := nodeShutdown{dir, "boot-1"}, slog.New(slog.DiscardHandler)
	if err := file.keep(kept); err != nil {
		t.Fatal(err)
	}
	if got := file.recall(t.Context(), log); got != (grace.NodeShutdownTime{Begin: kept.Begin, End: kept.End, Kept: true}) {
		t.Errorf("the next agent knows %+v", got)
	}
	if err := file.keep(grace.NodeShutdownTime{Begin: now - 2, End: now - 1}); err != nil {
		t.Fatal(err)
	}
	if got := file.recall(t.Context(), log); got != (grace.NodeShutdownTime{}) {
		t.Errorf("its end has passed, and still %+v", got)
	}
	if got := (nodeShutdown{dir, "boot-2"}).recall(t.Context(), log); got != (grace.NodeShutdownTime{}) {
		t.Errorf("the next boot knows %+v", got)
	}
	for range 2 {
		if err := file.keep(grace.NodeShutdownTime{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := file.recall(t.Context(), log); got != (grace.NodeShutdownTime{}) {
		t.Errorf("forgotten, and still %+v", got)
	}
}

func TestAFileOfTheNodesShutdownThatCannotBeMeantIsLeftOutAndSaid(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "text": "hello",
		"the end before the begin": `{"bootID":"boot-1","beginMonotonicNanoseconds":2,"endMonotonicNanoseconds":1}`,
		"the future":               `{"bootID":"boot-1","beginMonotonicNanoseconds":9000000000000000000,"endMonotonicNanoseconds":9000000000000000001}`,
		"too long":                 `{"bootID":"` + strings.Repeat("x", maxNodeShutdown) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, nodeShutdownFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			if got := (nodeShutdown{dir, "boot-1"}).recall(t.Context(), slog.New(slog.NewTextHandler(&said, nil))); got != (grace.NodeShutdownTime{}) {
				t.Errorf("%+v", got)
			}
			if !strings.Contains(said.String(), "cannot be used") {
				t.Error("not said")
			}
		})
	}
}

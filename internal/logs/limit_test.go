package logs

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEachMessageHasItsBudgetAndDebugPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := Limited(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for i := range 100 {
			log.With("i", i).WithGroup("g").Warn("noise")
			log.Debug("asked for")
		}
		log.Error("another")
		for message, want := range map[string]int{"noise": burst, `"asked for"`: 100, "another": 1} {
			if n := strings.Count(text.String(), "msg="+message); n != want {
				t.Errorf("%s: %d lines, want %d", message, n, want)
			}
		}
		time.Sleep(every) //nolint:forbidigo // fake time
		log.Warn("noise")
		log.Warn("noise")
		if n := strings.Count(text.String(), "leftOut=90"); n != 1 || strings.Count(text.String(), "msg=noise") != burst+1 {
			t.Errorf("a minute later, want one line that counts what was left out:\n%s", text.String())
		}
	})
}

func TestLongTextsAreCut(t *testing.T) {
	var text bytes.Buffer
	long := strings.Repeat("ä", 30_000)
	Limited(slog.New(slog.NewTextHandler(&text, nil))).Warn("m", "err", errors.New(long), "uid", long, "n", 7)
	if text.Len() > 2*maxBytes+200 || !strings.Contains(text.String(), "n=7") {
		t.Errorf("%d bytes", text.Len())
	}
}

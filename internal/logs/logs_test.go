package logs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestADurationHasItsUnit(t *testing.T) {
	for format, want := range map[string][]string{
		"json": {`"took":"1.5s"`, `"none":"0s"`, `"inside":{"gracePeriod":"20s"}`, `"later":"2m0s"`},
		"text": {`took=1.5s`, `none=0s`, `inside.gracePeriod=20s`, `later=2m0s`},
	} {
		var out bytes.Buffer
		New(&out, format, 0).With("later", 2*time.Minute).Info("said", "took", 1500*time.Millisecond, "none", time.Duration(0),
			slog.Group("inside", "gracePeriod", 20*time.Second))
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: no %s in %s", format, w, out.String())
			}
		}
	}
}

func TestDebugLinesAreSaidWhereTheyWereAskedFor(t *testing.T) {
	for verbosity, want := range map[int]int{0: 1, 1: 2} {
		var out bytes.Buffer
		log := New(&out, "text", verbosity)
		log.Debug("decided")
		log.Info("did")
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("with -v %d times: %d lines, want %d", verbosity, got, want)
		}
	}
}

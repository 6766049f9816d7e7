package writer

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// reader takes nothing until it reads.
type reader struct {
	reads chan struct{}
	text  bytes.Buffer
}

func (r *reader) Write(line []byte) (int, error) {
	<-r.reads
	return r.text.Write(line)
}

func TestNobodyWaitsForTheReaderAndLinesThatAreDroppedAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Given: nobody reads.
		out := &reader{reads: make(chan struct{})}
		w := New(out)
		dropped := 0
		w.Report(func() { dropped++ }, func(lines int) { fmt.Fprintf(w, "dropped %d\n", lines) })
		// When: far more is written than waits.
		fmt.Fprintln(w, "first")
		synctest.Wait()
		for i := range 3 * waiting {
			fmt.Fprintln(w, i)
		}
		if dropped != 2*waiting {
			t.Errorf("%d lines are dropped, want %d", dropped, 2*waiting)
		}
		// Then: once somebody reads, one line says how many are missing.
		close(out.reads)
		w.Close(time.Second)
		text := out.text.String()
		want := fmt.Sprintf("dropped %d\n", 2*waiting)
		if strings.Count(text, "dropped") != 1 || !strings.Contains(text, want) || !strings.HasPrefix(text, "first\n0\n1\n") {
			t.Errorf("want %q among the first lines:\n%.200s", want, text)
		}
	})
}

func TestCloseWritesWhatWaitsAndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		w := New(&text)
		for i := range waiting {
			fmt.Fprintln(w, i)
		}
		w.Close(time.Hour)
		if n := strings.Count(text.String(), "\n"); n != waiting {
			t.Errorf("%d lines, want %d", n, waiting)
		}

		out := &reader{reads: make(chan struct{})}
		w = New(out)
		fmt.Fprintln(w, "unread")
		begin := time.Now()
		w.Close(200 * time.Millisecond)
		if took := time.Since(begin); took != 200*time.Millisecond {
			t.Errorf("closed after %v", took)
		}
		if _, err := io.WriteString(w, "late"); err != nil {
			t.Error(err)
		}
		close(out.reads)
	})
}

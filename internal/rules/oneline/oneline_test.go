package oneline

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "a", " a\n\tb ": "a b", "\xff": "?", "12345678": "12345678", "123456789": "12345678…", "1234567é": "1234567…",
	} {
		if got := Cut(text, 8); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("a\nb", 1)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 0 {
			return
		}
		got := Cut(text, most)
		if !utf8.ValidString(got) || len(got) > most+len("…") || strings.ContainsAny(got, "\n\r") {
			t.Errorf("%q", got)
		}
	})
}

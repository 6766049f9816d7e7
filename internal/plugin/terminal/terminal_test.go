package terminal

import (
	"testing"
)

func TestABarHasOneWidth(t *testing.T) {
	for percent, want := range map[int]string{
		-7: "[..........]", 0: "[..........]", 9: "[..........]", 10: "[#.........]", 55: "[#####.....]",
		99: "[#########.]", 100: "[##########]", 4000: "[##########]",
	} {
		if got := Bar(percent); got != want {
			t.Errorf("%d %%: %q, want %q", percent, got, want)
		}
	}
}

func TestATextControlsNoTerminal(t *testing.T) {
	if got := Line("a\n\x1b[2Jb\u202ec"); got != "a;  [2Jb c" {
		t.Errorf("%q", got)
	}
	for width := range 8 {
		if got := Clip("ä\x1bbcdef", width); len(got) > width {
			t.Errorf("%d columns: %q", width, got)
		}
	}
	if got := Clip("abcdef", 4); got != "abc~" {
		t.Errorf("%q", got)
	}
}

func TestEraseCountsTheRowsOfANarrowTerminal(t *testing.T) {
	for width, want := range map[int]string{80: "\x1b[2A\r\x1b[J", 5: "\x1b[3A\r\x1b[J", 1: "\x1b[9A\r\x1b[J"} {
		if got := Erase("123456789\nab\n", width, 10); got != want {
			t.Errorf("%d columns: %q, want %q", width, got, want)
		}
	}
	if got := Erase("", 80, 24); got != "" {
		t.Errorf("nothing was drawn: %q", got)
	}
}

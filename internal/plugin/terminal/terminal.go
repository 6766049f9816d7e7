// Package terminal prints text of unknown origin: on a terminal, where it must fit and must
// not control anything, and as single lines.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Size returns a function that reads the size of the terminal w, at least 1 by 1. It is nil
// if w is no terminal, or one that cannot move the cursor.
func Size(w io.Writer) func() (width, height int) {
	f, ok := w.(*os.File)
	if term := os.Getenv("TERM"); !ok || term == "" || term == "dumb" {
		return nil
	}
	if !Is(f) {
		return nil
	}
	return func() (width, height int) {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 || size.Row == 0 {
			return 80, 24 // it does not report a size
		}
		return int(size.Col), int(size.Row)
	}
}

// Is reports whether x is a terminal.
func Is(x any) bool {
	f, ok := x.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// Line makes one line of a text, and replaces control characters. Parts of the text come
// from objects of other users, and must not control the terminal.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}

// Clip makes one line of a text and shortens it to width columns. The result is ASCII, so
// each byte takes one column.
func Clip(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, Line(text))
	switch {
	case len(text) <= width:
		return text
	case width == 0:
		return ""
	default:
		return text[:width-1] + "~"
	}
}

// barWidth is the number of steps of a Bar.
const barWidth = 10

// Bar returns a progress bar of 12 columns. A percentage below 0 or above 100 counts as 0
// or 100.
func Bar(percent int) string {
	full := min(max(percent, 0), 100) * barWidth / 100
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}

// Erase returns the control sequence that moves the cursor to the first line of the text
// drawn before and clears from there. If the terminal was made narrower, a line takes
// several rows.
func Erase(drawn string, width, height int) string {
	var n int
	for line := range strings.Lines(drawn) {
		n += 1 + max(len(line)-2, 0)/width
	}
	n = min(n, height-1) // rows that were scrolled out cannot be cleared
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", n)
}

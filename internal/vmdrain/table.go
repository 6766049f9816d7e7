package vmdrain

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/vmgrace/vmgrace/pkg/drain"
)

// table is for a terminal: it is drawn anew over itself at each change. Lines go
// above it.
type table struct {
	*lines

	size  func() (width, height int)
	drawn string // as it stands on the terminal
}

// widest is what a table makes use of.
const widest = 120

func (t *table) node(name, event, text string) {
	fmt.Fprint(t.out.Out, t.erase())
	t.lines.node(name, event, text)
}

func (t *table) warn(node, text string) {
	fmt.Fprint(t.out.Out, t.erase())
	t.lines.warn(node, text)
}

func (t *table) pods(_ string, all []drain.Status) {
	for i := range all {
		if s := &all[i]; s.Warning != "" && changed(t.last, s) {
			fmt.Fprint(t.out.Out, t.erase())
			t.warned(s)
		}
	}
	// The last column stays free: some terminals go on to the next line from it. So
	// does the last line, which the cursor is in.
	width, height := t.size()
	if text := render(all, min(width-1, widest), height-1); text != t.drawn {
		fmt.Fprint(t.out.Out, t.erase()+text) // in one piece: it does not flicker
		t.drawn = text
	}
}

func (t *table) result(node, result, text string, left []drain.Status) {
	t.drawn = "" // the last state stays
	t.lines.result(node, result, text, left)
}

// erase is what goes back to the table's first line and clears from there. Lines
// that are longer than a terminal that has become smaller are several there.
func (t *table) erase() string {
	width, height := t.size()
	var n int
	for line := range strings.Lines(t.drawn) {
		n += 1 + max(len(line)-2, 0)/width
	}
	t.drawn = ""
	n = min(n, height-1) // what has left the terminal cannot be taken back
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", n)
}

// render is a table of at most height lines, none wider than width. What has to
// be seen comes first: what failed, moves or waits, then the rest.
func render(all []drain.Status, width, height int) string {
	var drained int
	var shown []drain.Status
	for _, s := range all {
		if s.State == drain.StateDrained {
			drained++
		} else {
			shown = append(shown, s)
		}
	}
	slices.SortStableFunc(shown, func(a, b drain.Status) int { return rank(a.State) - rank(b.State) })
	name := max(1, min(34, (width-16)/2))
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n", clip(fmt.Sprintf("%d of %d pods drained", drained, len(all)), width))
	for i, s := range shown {
		if height < 2 {
			break // no room for more
		}
		if i >= height-2 && len(shown) > height-1 {
			fmt.Fprintf(&text, "%s\n", clip(fmt.Sprintf("and %d more", len(shown)-i), width))
			break
		}
		line := fmt.Sprintf("%-*s %-12s ", name, clip(s.Pod.Namespace+"/"+s.Pod.Name, name), s.State)
		if s.Percent >= 0 {
			line += bar(s.Percent) + " "
		}
		fmt.Fprintf(&text, "%s\n", strings.TrimRight(clip(line+s.Reason, width), " "))
	}
	return text.String()
}

func rank(s drain.State) int {
	return slices.Index([]drain.State{
		drain.StateFailed, drain.StateMoving, drain.StateBlocked, drain.StateEvicting, drain.StateTerminating,
		drain.StateDetaching, drain.StateReattaching, drain.StateCompleting, drain.StateWaiting,
	}, s)
}

func bar(percent int) string {
	full := percent / 10
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", 10-full) + "]"
}

// clip cuts a text, which may be somebody else's. What is left is as wide as it is
// long: each character takes one column.
func clip(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, clean(text))
	switch {
	case len(text) <= width:
		return text
	case width == 0:
		return ""
	default:
		return text[:width-1] + "~"
	}
}

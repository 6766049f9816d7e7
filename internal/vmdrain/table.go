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

	width, height int
	drawn         string // as it stands on the terminal
}

func (t *table) node(name, event, text string) {
	t.erase()
	t.lines.node(name, event, text)
}

func (t *table) warn(node, text string) {
	t.erase()
	t.lines.warn(node, text)
}

func (t *table) pods(_ string, all []drain.Status) {
	for i := range all {
		if s := &all[i]; s.Warning != "" && changed(t.last, s) {
			t.erase()
			t.warned(s)
		}
	}
	if text := render(all, t.width, t.height-2); text != t.drawn {
		t.erase()
		fmt.Fprint(t.out.Out, text)
		t.drawn = text
	}
}

func (t *table) result(node, result, text string, left []drain.Status) {
	t.drawn = "" // the last state stays
	t.lines.result(node, result, text, left)
}

// erase goes back to the table's first line and clears from there.
func (t *table) erase() {
	if n := strings.Count(t.drawn, "\n"); n > 0 {
		fmt.Fprintf(t.out.Out, "\x1b[%dA\x1b[J", n)
	}
	t.drawn = ""
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
	name := min(34, (width-16)/2)
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n", clip(fmt.Sprintf("%d of %d pods drained", drained, len(all)), width))
	for i, s := range shown {
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

// clip cuts a text, which may be somebody else's: nothing of it moves the cursor.
func clip(text string, width int) string {
	clean := []rune(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
	if len(clean) > width {
		return string(clean[:width-1]) + "~"
	}
	return string(clean)
}

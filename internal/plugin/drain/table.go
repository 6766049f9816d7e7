package drain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// tablePrinter redraws a table in place at each change. Other lines are printed above it.
type tablePrinter struct {
	*linePrinter

	size  func() (width, height int)
	drawn string // the table on the terminal, or empty
}

// maxWidth is the largest width of the table.
const maxWidth = 120

func (t *tablePrinter) node(name, event, text string) {
	fmt.Fprint(t.out.Out, t.erase())
	t.linePrinter.node(name, event, text)
}

func (t *tablePrinter) warn(node, text string) {
	fmt.Fprint(t.out.Out, t.erase())
	t.linePrinter.warn(node, text)
}

func (t *tablePrinter) pods(_ string, all []drain.Status) {
	for i := range all {
		if s := &all[i]; s.Warning != "" && changed(t.last, s) {
			fmt.Fprint(t.out.Out, t.erase())
			t.podWarning(s)
		}
	}
	// The last column stays free, because some terminals wrap after it. The last line
	// stays free for the cursor.
	width, height := t.size()
	if text := render(all, min(width-1, maxWidth), height-1); text != t.drawn {
		fmt.Fprint(t.out.Out, t.erase()+text) // one write, so that it does not flicker
		t.drawn = text
	}
}

func (t *tablePrinter) result(node, result, text string, left []drain.Status) {
	t.drawn = "" // the last table stays on the terminal
	t.linePrinter.result(node, result, text, left)
}

// erase returns the control sequence that clears the table.
func (t *tablePrinter) erase() string {
	width, height := t.size()
	text := terminal.Erase(t.drawn, width, height)
	t.drawn = ""
	return text
}

// render returns a table of at most height lines, none wider than width, with failed and
// moving pods first, and waiting ones last.
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
	fmt.Fprintf(&text, "%s\n", terminal.Clip(fmt.Sprintf("%d of %d pods drained", drained, len(all)), width))
	for i, s := range shown {
		if height < 2 {
			break // no line is left
		}
		if i >= height-2 && len(shown) > height-1 {
			fmt.Fprintf(&text, "%s\n", terminal.Clip(fmt.Sprintf("and %d more", len(shown)-i), width))
			break
		}
		line := fmt.Sprintf("%-*s %-12s ", name, terminal.Clip(s.Pod.Namespace+"/"+s.Pod.Name, name), s.State)
		if s.Percent >= 0 {
			line += terminal.Bar(s.Percent) + " "
		}
		fmt.Fprintf(&text, "%s\n", strings.TrimRight(terminal.Clip(line+s.Reason, width), " "))
	}
	return text.String()
}

// rank returns the position of a state in the table.
func rank(s drain.State) int {
	return slices.Index([]drain.State{
		drain.StateFailed, drain.StateMoving, drain.StateBlocked, drain.StateEvicting, drain.StateTerminating,
		drain.StateDetaching, drain.StateReattaching, drain.StateCompleting, drain.StateWaiting,
	}, s)
}

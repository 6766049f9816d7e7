package vmdrain

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/drain"
)

// Output is where Run prints: progress and results to Out, warnings to Err.
type Output struct {
	Out, Err io.Writer
}

// printer prints the progress of a run. It is not safe for concurrent use.
type printer interface {
	// node prints an event of a node; event is its type in the JSON output.
	node(name, event, text string)
	warn(node, text string)
	// pods prints the pods whose state has changed since the last call.
	pods(node string, all []drain.Status)
	dryRun(node string, s *drain.Status, text string)
	// result prints the final result of a node.
	result(node, result, text string, left []drain.Status)
}

func newPrinter(out Output, format string) printer {
	if format == outputJSON {
		return &jsonPrinter{out: json.NewEncoder(out.Out), last: map[string]string{}}
	}
	lines := &linePrinter{out: out, last: map[string]string{}}
	if size := terminal(out.Out); size != nil {
		return &tablePrinter{linePrinter: lines, size: size}
	}
	return lines
}

// terminal returns a function that reads the terminal's size, at least 1 by 1. It is nil
// if w is no terminal, or one that cannot move the cursor.
func terminal(w io.Writer) func() (width, height int) {
	f, ok := w.(*os.File)
	if term := os.Getenv("TERM"); !ok || term == "" || term == "dumb" {
		return nil
	}
	if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err != nil {
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

// linePrinter prints a line for each change, for a pipe or a file.
type linePrinter struct {
	out  Output
	last map[string]string
}

// writeLine writes one sanitized line.
func writeLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, sanitize(fmt.Sprintf(format, args...)))
}

// sanitize makes one line of a text, and replaces control characters. Parts of the text
// come from objects of other users, and must not control the terminal.
func sanitize(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}

func (l *linePrinter) node(name, _, text string) { writeLine(l.out.Out, "node/%s %s", name, text) }

func (l *linePrinter) warn(node, text string) {
	writeLine(l.out.Err, "Warning: node/%s: %s", node, text)
}

func (l *linePrinter) pods(_ string, all []drain.Status) {
	for i := range all {
		s := &all[i]
		if !changed(l.last, s) {
			continue
		}
		writeLine(l.out.Out, "pod %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, withColon(s.Reason))
		if s.Warning != "" {
			l.podWarning(s)
		}
	}
}

func (l *linePrinter) podWarning(s *drain.Status) {
	writeLine(l.out.Err, "Warning: pod %s/%s: %s", s.Pod.Namespace, s.Pod.Name, s.Warning)
}

// changed reports whether to print a status: if its state or reason differs from the
// pod's last one. Of a migration's progress it prints each 10 %.
func changed(last map[string]string, s *drain.Status) bool {
	key := fmt.Sprintf("%s %s", s.State, s.Reason)
	if s.Percent >= 0 {
		key = fmt.Sprintf("%s %d", s.State, s.Percent/10)
	}
	if last[s.Pod.UID] == key || s.State == drain.StateWaiting && s.Reason == "" {
		return false
	}
	last[s.Pod.UID] = key
	return true
}

func (l *linePrinter) dryRun(_ string, _ *drain.Status, text string) {
	writeLine(l.out.Out, "%s", text)
}

func (l *linePrinter) result(node, _, text string, left []drain.Status) {
	writeLine(l.out.Out, "node/%s %s", node, text)
	for i := range left {
		s := &left[i]
		writeLine(l.out.Out, "  %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, withColon(s.Reason))
	}
}

// withColon returns ": reason", or nothing without a reason.
func withColon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// jsonPrinter prints one JSON object a line. docs/drain.md describes the fields.
type jsonPrinter struct {
	out  *json.Encoder
	last map[string]string
}

type object struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Node      string    `json:"node"`
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	UID       string    `json:"uid,omitempty"`
	State     string    `json:"state,omitempty"`
	Message   string    `json:"message,omitempty"`
	Percent   *int      `json:"percent,omitempty"`
	Result    string    `json:"result,omitempty"`
	Left      []object  `json:"left,omitempty"`
}

func (o *jsonPrinter) write(x object) {
	x.Time = time.Now().UTC()
	_ = o.out.Encode(x) // the reader has closed the pipe
}

func (o *jsonPrinter) node(name, event, text string) {
	o.write(object{Event: event, Node: name, Message: text})
}

func (o *jsonPrinter) warn(node, text string) {
	o.write(object{Event: "warning", Node: node, Message: text})
}

func podObject(event, node string, s *drain.Status) object {
	x := object{
		Time: time.Now().UTC(), Event: event, Node: node, Namespace: s.Pod.Namespace, Pod: s.Pod.Name, UID: s.Pod.UID,
		State: string(s.State), Message: s.Reason,
	}
	if s.State == drain.StateDrained && s.Warning != "" {
		x.Message = s.Warning
	}
	if s.Percent >= 0 {
		x.Percent = &s.Percent
	}
	return x
}

func (o *jsonPrinter) pods(node string, all []drain.Status) {
	for i := range all {
		if changed(o.last, &all[i]) {
			o.write(podObject("pod", node, &all[i]))
		}
	}
}

func (o *jsonPrinter) dryRun(node string, s *drain.Status, text string) {
	x := podObject("dry run", node, s)
	x.Message = text
	o.write(x)
}

func (o *jsonPrinter) result(node, result, text string, left []drain.Status) {
	x := object{Event: "result", Node: node, Result: result, Message: text}
	for i := range left {
		x.Left = append(x.Left, podObject("left", node, &left[i]))
	}
	o.write(x)
}

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

	"github.com/vmgrace/vmgrace/pkg/drain"
)

// Output is where things are shown: what happens on Out, warnings on Err.
type Output struct {
	Out, Err io.Writer
}

// printer shows a run. Its methods are for one goroutine.
type printer interface {
	// node says what happened to a node; event is a word for programs.
	node(name, event, text string)
	warn(node, text string)
	// pods shows how it stands, as often as anything may have changed.
	pods(node string, all []drain.Status)
	rehearsal(node string, s *drain.Status, text string)
	// result is the last word about a node.
	result(node, result, text string, left []drain.Status)
}

func newPrinter(out Output, format string) printer {
	if format == outputJSON {
		return &objects{out: json.NewEncoder(out.Out), last: map[string]string{}}
	}
	lines := &lines{out: out, last: map[string]string{}}
	if size := terminal(out.Out); size != nil {
		return &table{lines: lines, size: size}
	}
	return lines
}

// terminal tells how large the terminal is now; nil where w is none, or one that
// can only write line after line.
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
			return 80, 24 // one that does not say
		}
		return int(size.Col), int(size.Row)
	}
}

// lines are for a pipe or a file: one for each change.
type lines struct {
	out  Output
	last map[string]string
}

// put writes one line.
func put(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, clean(fmt.Sprintf(format, args...)))
}

// clean makes one line of a text, which may be somebody else's: nothing of it
// reaches a terminal as a command.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}

func (l *lines) node(name, _, text string) { put(l.out.Out, "node/%s %s", name, text) }

func (l *lines) warn(node, text string) { put(l.out.Err, "Warning: node/%s: %s", node, text) }

func (l *lines) pods(_ string, all []drain.Status) {
	for i := range all {
		s := &all[i]
		if !changed(l.last, s) {
			continue
		}
		put(l.out.Out, "pod %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, because(s.Reason))
		if s.Warning != "" {
			l.warned(s)
		}
	}
}

func (l *lines) warned(s *drain.Status) {
	put(l.out.Err, "Warning: pod %s/%s: %s", s.Pod.Namespace, s.Pod.Name, s.Warning)
}

// changed tells whether a status is worth a line: of a migration each tenth is.
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

func (l *lines) rehearsal(_ string, _ *drain.Status, text string) { put(l.out.Out, "%s", text) }

func (l *lines) result(node, _, text string, left []drain.Status) {
	put(l.out.Out, "node/%s %s", node, text)
	for i := range left {
		s := &left[i]
		put(l.out.Out, "  %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, because(s.Reason))
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// objects are for programs: one JSON object a line. docs/drain.md has the fields.
type objects struct {
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

func (o *objects) say(x object) {
	x.Time = time.Now().UTC()
	_ = o.out.Encode(x) // a reader that is gone has nothing to be told
}

func (o *objects) node(name, event, text string) {
	o.say(object{Event: event, Node: name, Message: text})
}

func (o *objects) warn(node, text string) {
	o.say(object{Event: "warning", Node: node, Message: text})
}

func of(event, node string, s *drain.Status) object {
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

func (o *objects) pods(node string, all []drain.Status) {
	for i := range all {
		if changed(o.last, &all[i]) {
			o.say(of("pod", node, &all[i]))
		}
	}
}

func (o *objects) rehearsal(node string, s *drain.Status, text string) {
	x := of("dry run", node, s)
	x.Message = text
	o.say(x)
}

func (o *objects) result(node, result, text string, left []drain.Status) {
	x := object{Event: "result", Node: node, Result: result, Message: text}
	for i := range left {
		x.Left = append(x.Left, of("left", node, &left[i]))
	}
	o.say(x)
}

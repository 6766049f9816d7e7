package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
	"github.com/vmgrace/vmgrace/internal/rules/drain"
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
	if size := terminal.Size(out.Out); size != nil {
		return &tablePrinter{linePrinter: lines, size: size}
	}
	return lines
}

// linePrinter prints a line for each change, for a pipe or a file.
type linePrinter struct {
	out  Output
	last map[string]string
}

// WriteLine writes one line, without control characters.
func WriteLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, terminal.Line(fmt.Sprintf(format, args...)))
}

func (l *linePrinter) node(name, _, text string) { WriteLine(l.out.Out, "node/%s %s", name, text) }

func (l *linePrinter) warn(node, text string) {
	WriteLine(l.out.Err, "Warning: node/%s: %s", node, text)
}

func (l *linePrinter) pods(_ string, all []drain.Status) {
	for i := range all {
		s := &all[i]
		if !changed(l.last, s) {
			continue
		}
		WriteLine(l.out.Out, "pod %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, withColon(s.Reason))
		if s.Warning != "" {
			l.podWarning(s)
		}
	}
}

func (l *linePrinter) podWarning(s *drain.Status) {
	WriteLine(l.out.Err, "Warning: pod %s/%s: %s", s.Pod.Namespace, s.Pod.Name, s.Warning)
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
	WriteLine(l.out.Out, "%s", text)
}

func (l *linePrinter) result(node, _, text string, left []drain.Status) {
	WriteLine(l.out.Out, "node/%s %s", node, text)
	for i := range left {
		s := &left[i]
		WriteLine(l.out.Out, "  %s/%s: %s%s", s.Pod.Namespace, s.Pod.Name, s.State, withColon(s.Reason))
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

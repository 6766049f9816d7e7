package drain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

func TestTheTableFitsTheTerminal(t *testing.T) {
	var all []drain.Status
	for i := range 60 {
		s := drain.Status{Pod: drain.Pod{Namespace: "namespace-" + strings.Repeat("x", i), Name: fmt.Sprint("pod-", i)}, State: drain.StateWaiting, Percent: -1}
		switch i % 3 {
		case 0:
			s.State, s.Percent, s.Reason = drain.StateMoving, i, "migration Running, a \x1b[2J word ⟨of somebody else's⟩ that is long"
		case 1:
			s.State = drain.StateDrained
		}
		all = append(all, s)
	}
	fits := func(width, height int) (text string) {
		text = render(all, width, height)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > max(height, 1) {
			t.Errorf("%d lines on %d", len(lines), height)
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > width || strings.ContainsRune(l, '\x1b') {
				t.Errorf("on %d columns: %q", width, l)
			}
		}
		return text
	}
	for width := range 60 {
		for height := range 6 {
			fits(width, height)
		}
	}
	text := fits(80, 24)
	for _, want := range []string{"20 of 60 pods drained", "Moving       [#####.....]", "and 18 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Control characters of other users' texts do not reach the terminal.
func TestALineIsOneLine(t *testing.T) {
	var out, errs bytes.Buffer
	p := newPrinter(Output{&out, &errs}, outputText)
	s := drain.Status{Pod: drain.Pod{UID: "u", Namespace: "a", Name: "vm"}, State: drain.StateBlocked, Reason: "it is\n\x1b[2Jso \u202eand so", Percent: -1}
	p.pods("n", []drain.Status{s})
	p.result("n", "left", "not\ndrained", []drain.Status{s})
	if want := "pod a/vm: Blocked: it is;  [2Jso  and so\nnode/n not; drained\n  a/vm: Blocked: it is;  [2Jso  and so\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestALineForEachChangeAndEachTenthOfAMigration(t *testing.T) {
	var out, errs bytes.Buffer
	p := newPrinter(Output{&out, &errs}, outputText)
	for _, percent := range []int{0, 1, 9, 10, 11, 99} {
		p.pods("n", []drain.Status{{Pod: drain.Pod{UID: "u", Namespace: "a", Name: "vm"}, State: drain.StateMoving, Reason: fmt.Sprint(percent, " %"), Percent: percent}})
	}
	if want := "pod a/vm: Moving: 0 %\npod a/vm: Moving: 10 %\npod a/vm: Moving: 99 %\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestTheCommandLine(t *testing.T) {
	for args, text := range map[string]string{
		"":                          "name a node",
		"n --selector=a=b":          "not both",
		"--selector=!!":             "--selector",
		"n --pod-selector=!!":       "--pod-selector",
		"n --dry-run=maybe":         "none, client or server",
		"n -o yaml":                 "must be json",
		"n --timeout=-1s":           "negative",
		"n --reattach-timeout=-1s":  "negative",
		"n --no-such-flag":          "no-such-flag",
		"n --dry-run --timeout=10s": "",
		"-l a=b --grace-period=0":   "",
		"help":                      "", // nodes, too, may have these names
		"completion bash":           "",
	} {
		cmd, ran := NewCommand("kubectl vmdrain", "1.0", Output{io.Discard, io.Discard}), false
		cmd.RunE = func(*cobra.Command, []string) error { ran = true; return nil }
		cmd.SetArgs(strings.Fields(args))
		err := cmd.ExecuteContext(t.Context())
		if ran != (text == "") || ran != (err == nil) || err != nil && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), text)) {
			t.Errorf("%q: %v", args, err)
		}
	}
	for flag, want := range map[string]string{"--help": "Exit status: 0", "-h": "\nConnection, as kubectl's:\n", "--version": "kubectl-vmdrain 1.0\n"} {
		var out bytes.Buffer
		cmd := NewCommand("kubectl vmdrain", "1.0", Output{&out, io.Discard})
		cmd.SetArgs([]string{flag})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v: %s", flag, err, out.String())
		}
	}
}

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// result is what was seen of the drain.
type result struct {
	from, to string // nodes
	drained  time.Duration
	exit     int // kubectl drain's
	// The guest's uptimes in seconds: when the drain began, the last at the source, the first at
	// the target.
	before, left, after int
	boots, asked        int
	stood               string // for how long the guest stood still, in ms; "" if that is not known
}

// table returns the table at the end. ok is true if all is as it should be.
func (r result) table() (text string, ok bool) {
	var problems []string
	expect := func(is bool, problem string) {
		if !is {
			problems = append(problems, problem)
		}
	}
	expect(r.exit == 0, fmt.Sprintf("kubectl drain: exit status %d", r.exit))
	expect(r.to != "" && r.to != r.from, "not moved")
	expect(r.after >= r.left && r.left >= r.before, "its uptime did not go on")
	expect(r.boots == 1, "booted again")
	expect(r.asked == 0, "asked to shut down")
	verdict := "yes"
	if ok = len(problems) == 0; !ok {
		verdict = "NO: " + strings.Join(problems, ", ")
	}
	stood := "-"
	if r.stood != "" {
		stood = r.stood + " ms"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VM\tFROM\tTO\tDRAIN TOOK\tSTOOD STILL\tUPTIME BEFORE\tUPTIME AFTER\tBOOTS\tASKED TO STOP\tOK")
	fmt.Fprintf(w, "%s\t%s\t%s\t%.1f s\t%s\t%d s\t%d s\t%d\t%d\t%s\n", example, r.from, r.to, r.drained.Seconds(), stood, r.left, r.after, r.boots, r.asked, verdict)
	if err := w.Flush(); err != nil {
		return err.Error(), false
	}
	return b.String(), ok
}

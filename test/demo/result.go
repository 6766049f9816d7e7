package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// The contract's promises.
const (
	politeWithin    = time.Second
	reactWithin     = time.Second
	overshootWithin = 50 * time.Millisecond
)

// result is how a guest ended.
type result struct {
	part
	asked    time.Time
	after    time.Duration
	forced   bool
	error    time.Duration // QEMU's SIGTERM minus the deadline, if forced
	outcome  string
	problems []string
}

// judge compares how a guest ended with how it should have ended.
func judge(a *actor) result {
	status := a.Launcher.Status()
	r := result{part: a.part, asked: a.asked, after: a.gone.Sub(a.asked), outcome: status.Outcome}
	r.expect(status.Outcome == a.want, "outcome "+status.Outcome)
	code, ended := a.Shim.Exited(5 * time.Second)
	r.expect(ended && code == 0, fmt.Sprintf("shim's exit status %d", code))
	if a.want == "Graceful" {
		r.expect(r.after < politeWithin, "took longer than "+politeWithin.String())
		return r
	}
	r.expect(status.Deadline == a.deadline, "the deadline moved to "+status.Deadline)
	deadline, err := time.Parse(time.RFC3339, a.deadline)
	granted := deadline.Sub(a.asked.Truncate(time.Millisecond)) // status.json states milliseconds
	r.expect(granted >= a.grace && granted < a.grace+reactWithin, "got a grace period of "+granted.String())
	killed, ok := a.Terminated() // by QEMU's own log
	r.expect(err == nil && ok, "no signal in QEMU's log")
	if err == nil && ok {
		r.forced, r.error = true, killed.At.Sub(deadline)
		r.expect(r.error >= 0, "before the deadline")
		r.expect(r.error < overshootWithin, "later than "+overshootWithin.String())
	}
	return r
}

func (r *result) expect(ok bool, problem string) {
	if !ok {
		r.problems = append(r.problems, problem)
	}
}

// table returns the plain table at the end. ok is true if no result has a problem.
func table(results []result) (text string, ok bool) {
	var b strings.Builder
	ok = true
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VM\tGUEST\tGRACE\tASKED AT\tENDED AFTER\tDEADLINE MISSED BY\tOUTCOME\tEXPECTED\tOK")
	for _, r := range results {
		missed, verdict := "-", "yes"
		if r.forced {
			missed = fmt.Sprintf("%+.1f ms", float64(r.error.Microseconds())/1000)
		}
		if len(r.problems) > 0 {
			ok, verdict = false, "NO: "+strings.Join(r.problems, ", ")
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%.3f s\t%s\t%s\t%s\t%s\n", r.name, r.guest, r.grace,
			r.asked.Format("15:04:05.000"), r.after.Seconds(), missed, r.outcome, r.want, verdict)
	}
	if err := w.Flush(); err != nil {
		return err.Error(), false
	}
	return b.String(), ok
}

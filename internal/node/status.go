package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// vmStatus is one VM in the output of status. Its keys are stable.
type vmStatus struct {
	Namespace          string      `json:"namespace"`
	Name               string      `json:"name"`
	UID                string      `json:"uid"`
	Domain             string      `json:"domain"`
	GracePeriodSeconds int64       `json:"gracePeriodSeconds"`
	Phase              grace.Phase `json:"phase"`
	Cause              grace.Cause `json:"cause,omitempty"`
	StartedAt          string      `json:"startedAt,omitempty"`
	Deadline           string      `json:"deadline,omitempty"`
	RemainingSeconds   *float64    `json:"remainingSeconds,omitempty"`
}

const statusUsage = `node-agent status prints what the grace cache holds. It needs no running agent.

Flags:
`

// Status runs the status command. It only reads the cache. Files that cannot be trusted
// are named on errOut.
func Status(args []string, out, errOut io.Writer) error {
	f := pflag.NewFlagSet("node-agent status", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprint(out, statusUsage, f.FlagUsages()) }
	dir := f.String("state-dir", defaultStateDir, "the grace cache")
	format := f.StringP("output", "o", "table", "table or json")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return &UsageError{err}
	}
	if f.NArg() > 0 {
		return &UsageError{fmt.Errorf("unknown argument %q", f.Arg(0))}
	}
	if *format != "table" && *format != "json" {
		return &UsageError{fmt.Errorf("-o %q: must be table or json", *format)}
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	loaded, err := gracecache.Read(*dir)
	if err != nil {
		return fmt.Errorf("%w (is --state-dir the agent's?)", err)
	}
	for _, q := range loaded.Quarantined {
		fmt.Fprintf(errOut, "node-agent status: %s is not a usable record: %v\n", q.Name, q.Reason)
	}
	vms := make([]vmStatus, 0, len(loaded.Records))
	for i := range loaded.Records {
		r := &loaded.Records[i]
		if r.BootID != boot {
			fmt.Fprintf(errOut, "node-agent status: %s is from another boot; that VM is gone\n", r.Domain())
			continue
		}
		vms = append(vms, statusOf(r, clock{}.Now()))
	}
	if *format == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(vms)
	}
	return table(out, vms)
}

func statusOf(r *grace.Record, now grace.Mono) vmStatus {
	s := vmStatus{
		Namespace: r.Namespace, Name: r.Name, UID: r.UID, Domain: r.Domain(),
		GracePeriodSeconds: grace.WholeSeconds(r.Period.Length), Phase: r.Phase(now),
	}
	if shown := r.Shown(); shown.Cause != "" {
		const layout = "2006-01-02T15:04:05.000Z"
		remaining := max(shown.Deadline.Sub(now), 0)
		seconds := math.Round(remaining.Seconds()*1000) / 1000
		s.Cause = shown.Cause
		s.StartedAt = shown.StartedAt.UTC().Format(layout)
		s.Deadline = shown.DeadlineAt.UTC().Format(layout)
		s.RemainingSeconds = &seconds
	}
	return s
}

func table(out io.Writer, vms []vmStatus) error {
	if len(vms) == 0 {
		_, err := fmt.Fprintln(out, "no VMs")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tNAME\tGRACE\tPHASE\tCAUSE\tREMAINING\tDEADLINE\tUID")
	for _, v := range vms {
		cause, remaining, deadline, uid := "-", "-", "-", "-"
		if v.UID != "" {
			uid = v.UID
		}
		if v.RemainingSeconds != nil {
			cause, deadline = string(v.Cause), v.Deadline
			remaining = (time.Duration(*v.RemainingSeconds*1000) * time.Millisecond).Round(100 * time.Millisecond).String()
		}
		grace := time.Duration(v.GracePeriodSeconds) * time.Second
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", v.Namespace, v.Name, grace, v.Phase, cause, remaining, deadline, uid)
	}
	return w.Flush()
}

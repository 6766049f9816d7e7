package taints

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// anyKey is the key of the option for taints without an option of their own.
const anyKey = "*"

// maxDuration replaces longer durations, which would overflow.
const maxDuration = 100 * 365 * 24 * time.Hour

// Policy is the policy with defaults filled in.
type Policy struct {
	Options []Option // none: no VM is replaced
	// Notice is the time between the condition NodeTaintReplacing and the replacement.
	Notice        time.Duration
	MaxConcurrent int
	MaxTainted    Share
}

// Option is a taint that counts. After is the duration until the condition
// NodeTaintReplacing; negative means never.
type Option struct {
	Key   string
	After time.Duration
}

// Share is a number of nodes, or a percentage of those with VMs.
type Share struct {
	Nodes   int
	Percent int // used if not 0
}

// Of returns the share of a number of nodes, rounded down, at least 1.
func (s Share) Of(nodes int) int {
	n := s.Nodes
	if s.Percent > 0 {
		n = nodes * s.Percent / 100
	}
	return max(n, 1)
}

func (s Share) String() string {
	if s.Percent > 0 {
		return strconv.Itoa(s.Percent) + "%"
	}
	return strconv.Itoa(s.Nodes)
}

// Off reports whether there are no options.
func (p *Policy) Off() bool { return len(p.Options) == 0 }

// option returns the option of a taint: that of its key, else that of any key.
func (p *Policy) option(key string) (o Option, counts bool) {
	for _, k := range []string{key, anyKey} {
		if i := slices.IndexFunc(p.Options, func(o Option) bool { return o.Key == k }); i >= 0 {
			return p.Options[i], true
		}
	}
	return Option{}, false
}

// PolicyOf converts the policy; nil means defaults. An invalid field keeps its value
// in before, and has a message in invalid.
func PolicyOf(t *v1alpha1.TaintReplacement, before Policy) (p Policy, invalid []string) {
	if t == nil {
		t = &v1alpha1.TaintReplacement{}
	}
	p.Notice, p.MaxConcurrent = v1alpha1.DefaultTaintReplacementTime*time.Second, v1alpha1.DefaultMaxConcurrentReplacements
	p.MaxTainted = Share{Percent: 10}
	for _, o := range t.Options {
		p.Options = append(p.Options, Option{Key: o.Key, After: seconds(o.DurationInSeconds)})
	}
	if s := t.TaintReplacementTimeSeconds; s != nil && *s >= 0 {
		p.Notice = seconds(*s)
	} else if s != nil {
		p.Notice = before.Notice
		invalid = append(invalid, fmt.Sprintf("spec.taintReplacement.taintReplacementTimeSeconds: %d is negative: %v stays in force", *s, before.Notice))
	}
	if n := t.MaxConcurrentReplacements; n != nil && *n >= 0 {
		p.MaxConcurrent = int(*n)
	} else if n != nil {
		p.MaxConcurrent = before.MaxConcurrent
		invalid = append(invalid, fmt.Sprintf("spec.taintReplacement.maxConcurrentReplacements: %d is negative: %d stays in force", *n, before.MaxConcurrent))
	}
	if m := t.MaxTaintedNodes; m != nil {
		if share, ok := parseShare(int(m.IntVal), m.StrVal); ok {
			p.MaxTainted = share
		} else {
			p.MaxTainted = before.MaxTainted
			invalid = append(invalid, fmt.Sprintf("spec.taintReplacement.maxTaintedNodes: %.20q is neither a number nor a percentage such as 10%%: %v stays in force", m.String(), before.MaxTainted))
		}
	}
	return p, invalid
}

// parseShare parses text, a percentage or a number. If text is empty, number is the
// share.
func parseShare(number int, text string) (Share, bool) {
	if text == "" {
		return Share{Nodes: number}, number >= 0
	}
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 0 || percent && n > 100:
		return Share{}, false
	case percent:
		return Share{Percent: n}, true
	default:
		return Share{Nodes: n}, true
	}
}

func seconds(n int64) time.Duration {
	if n < 0 {
		return -1
	}
	return time.Duration(min(n, int64(maxDuration/time.Second))) * time.Second
}

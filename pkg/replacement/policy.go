package replacement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// anyKey is the key of the option for taints that have none of their own.
const anyKey = "*"

// longest is what a longer duration counts as: such a taint never gets there.
const longest = 100 * 365 * 24 * time.Hour

// Policy is what was asked for, with every default filled in.
type Policy struct {
	Options []Option // none: off
	// Notice is how long a VM is left where it is once it is to be replaced.
	Notice        time.Duration
	MaxConcurrent int
	MaxTainted    Share
}

// Option is a taint that counts. After so long a VM is to be replaced; negative
// is never.
type Option struct {
	Key   string
	After time.Duration
}

// Share is a number of nodes, or a percentage of those with VMs.
type Share struct {
	Nodes   int
	Percent int // counts where it is not 0
}

// Of is the share of so many nodes, rounded down, and at least 1.
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

// Off tells whether no taint counts.
func (p *Policy) Off() bool { return len(p.Options) == 0 }

// option is that of a taint: the one of its key, else the one of any key.
func (p *Policy) option(key string) (o Option, counts bool) {
	for _, k := range []string{key, anyKey} {
		if i := slices.IndexFunc(p.Options, func(o Option) bool { return o.Key == k }); i >= 0 {
			return p.Options[i], true
		}
	}
	return Option{}, false
}

// PolicyOf reads the policy; nil is one that states nothing. What cannot be used
// stays as it was before, and is named.
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
		if share, ok := shareOf(int(m.IntVal), m.StrVal); ok {
			p.MaxTainted = share
		} else {
			p.MaxTainted = before.MaxTainted
			invalid = append(invalid, fmt.Sprintf("spec.taintReplacement.maxTaintedNodes: %.20q is neither a number nor a percentage such as 10%%: %v stays in force", m.String(), before.MaxTainted))
		}
	}
	return p, invalid
}

// shareOf: a word is a percentage, or a number that was written as one.
func shareOf(number int, word string) (Share, bool) {
	if word == "" {
		return Share{Nodes: number}, number >= 0
	}
	digits, percent := strings.CutSuffix(word, "%")
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
	return time.Duration(min(n, int64(longest/time.Second))) * time.Second
}

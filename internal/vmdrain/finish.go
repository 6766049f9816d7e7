package vmdrain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// finish says how it ended. Without an error the node is empty of what had to go.
func (n *node) finish(err error) error {
	if n.plan.NodeGone() {
		n.show.result(n.name, "gone", "the node is gone", nil)
		return nil
	}
	if n.DryRun != dryRunNone && err == nil {
		n.show.result(n.name, "dry run", "drained (dry run)", nil)
		return nil
	}
	left := n.plan.Left()
	if err == nil && len(left) == 0 {
		n.show.result(n.name, "drained", "drained", nil)
		return nil
	}
	if err == nil {
		err = errFailed
	}
	if errors.Is(err, context.Canceled) {
		err = ErrInterrupted
	}
	if n.DryRun != dryRunNone {
		n.show.result(n.name, "left", fmt.Sprintf("would not be drained: %v", err), nil)
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	which := fmt.Sprintf("pods left: %d", len(left))
	if !n.known {
		which = "which pods have to go is not known"
	}
	n.show.result(n.name, "left", fmt.Sprintf("not drained: %v; %s", err, which), left)
	return fmt.Errorf("node %s is not drained: %w", n.name, err)
}

// errFailed: each pod had its answer.
var errFailed = errors.New("some pods cannot be evicted")

// refused is kubectl drain's list of what must not be evicted.
func refused(refusals map[string][]string) error {
	all := sorted(refusals)
	errs := make([]error, len(all))
	for i, text := range all {
		errs[i] = fmt.Errorf("cannot delete %s", text)
	}
	return errors.Join(errs...)
}

func sorted(texts map[string][]string) []string {
	all := make([]string, 0, len(texts))
	for text, names := range texts {
		slices.Sort(names)
		all = append(all, text+": "+strings.Join(names, ", "))
	}
	slices.Sort(all)
	return all
}

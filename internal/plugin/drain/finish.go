package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// finish prints the result of the drain, and returns nil only if it succeeded. err is
// the error of the loop, or nil.
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
		err = errNotEvicted
	}
	if errors.Is(err, context.Canceled) {
		err = ErrInterrupted
	}
	if n.DryRun != dryRunNone {
		n.show.result(n.name, "left", fmt.Sprintf("would not be drained: %v", err), nil)
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	which := fmt.Sprintf("pods left: %d", len(left))
	if !n.chosen {
		which = "which pods have to go is not known"
	}
	n.show.result(n.name, "left", fmt.Sprintf("not drained: %v; %s", err, which), left)
	return fmt.Errorf("node %s is not drained: %w", n.name, err)
}

// errNotEvicted means that every pod was tried, and some evictions failed for good.
var errNotEvicted = errors.New("some pods cannot be evicted")

// refusalError names the pods that must not be evicted, worded as kubectl drain's error.
func refusalError(refusals map[string][]string) error {
	all := sorted(refusals)
	errs := make([]error, len(all))
	for i, text := range all {
		errs[i] = fmt.Errorf("cannot delete %s", text)
	}
	return errors.Join(errs...)
}

// sorted returns a line for each text with its names.
func sorted(texts map[string][]string) []string {
	all := make([]string, 0, len(texts))
	for text, names := range texts {
		slices.Sort(names)
		all = append(all, text+": "+strings.Join(names, ", "))
	}
	slices.Sort(all)
	return all
}

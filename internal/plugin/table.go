package plugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
)

// column is a column of the table.
type column struct {
	head  string
	wide  bool // only with -o wide
	value func(*VM) string
}

// Layout is which columns a table has.
type Layout struct{ Namespaces, Wide bool }

func (l Layout) columns() []column {
	all := []column{
		{"NAMESPACE", false, func(v *VM) string { return v.Namespace }},
		{"NAME", false, func(v *VM) string { return v.Name }},
		{"NODE", false, func(v *VM) string { return v.Node }},
		{"PHASE", false, func(v *VM) string { return v.Phase }},
		{"CAUSE", false, func(v *VM) string { return v.Cause }},
		{"GRACE", false, graceText},
		{"LEFT", false, leftText},
		{"MIGRATABLE", false, migratableText},
		{"MARK", false, markText},
		{"MIGRATION", false, migrationText},
		{"LAUNCHER", true, func(v *VM) string { return v.Launcher }},
		{"MESSAGE", true, messageText},
	}
	if !l.Namespaces {
		all = all[1:]
	}
	if !l.Wide {
		all = slices.DeleteFunc(all, func(c column) bool { return c.wide })
	}
	return all
}

// Table returns a table with a heading, as kubectl get prints it.
func Table(vms []VM, l Layout) string { return table(vms, l.columns()) }

func table(vms []VM, cols []column) string {
	rows := make([][]string, 1, len(vms)+1)
	widths := make([]int, len(cols))
	for _, c := range cols {
		rows[0] = append(rows[0], c.head)
	}
	for i := range vms {
		row := make([]string, len(cols))
		for j, c := range cols {
			if row[j] = terminal.Line(c.value(&vms[i])); row[j] == "" {
				row[j] = "-"
			}
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		for j, text := range row {
			widths[j] = max(widths[j], len([]rune(text)))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for j, text := range row {
			line.WriteString(text)
			line.WriteString(strings.Repeat(" ", widths[j]-len([]rune(text))+3))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return out.String()
}

// Screen returns a table of at most height lines, none wider than width. Columns without any
// value are left out, so that more of the others fits.
func Screen(vms []VM, l Layout, width, height int) string {
	cols := slices.DeleteFunc(l.columns(), func(c column) bool {
		return c.head != "NAME" && !slices.ContainsFunc(vms, func(v VM) bool { return c.value(&v) != "" })
	})
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(table(vms, cols), "\n"), "\n")
	for i, line := range lines {
		if i == height-1 && len(lines) > height {
			line = fmt.Sprintf("and %d more", len(lines)-i)
		}
		if i < height {
			out.WriteString(terminal.Clip(line, width) + "\n")
		}
	}
	return out.String()
}

// Line returns one line about a VM, for a pipe. It has no time left, which changes always.
func Line(v *VM) string {
	text := fmt.Sprintf("vm %s/%s: %s", v.Namespace, v.Name, v.Phase)
	if v.Node != "" {
		text += " on " + v.Node
	}
	if v.Cause != "" {
		text += ", cause " + v.Cause
	}
	if v.GracePeriodSeconds != nil {
		text += ", grace period " + graceText(v)
	}
	if v.Deadline != nil {
		text += ", until " + v.Deadline.UTC().Format(time.RFC3339)
	}
	if v.Guest != "" {
		text += ", " + v.Guest
	}
	text += ", migratable " + migratableText(v)
	if v.Mark != nil {
		text += ", marked " + markText(v)
	}
	if m := v.Migration; m != nil {
		text += ", migration " + m.Phase
		if m.Percent != nil {
			text += fmt.Sprintf(" %d %%", *m.Percent/10*10)
		}
		text += targetOf(m)
	}
	return terminal.Line(text)
}

func graceText(v *VM) string {
	if v.GracePeriodSeconds == nil {
		return "default"
	}
	return strconv.FormatInt(*v.GracePeriodSeconds, 10) + "s"
}

func leftText(v *VM) string {
	if v.RemainingSeconds == nil {
		return ""
	}
	return strconv.FormatInt(*v.RemainingSeconds, 10) + "s"
}

func migratableText(v *VM) string {
	if v.NotMigratable == "" {
		return v.LiveMigratable
	}
	return v.LiveMigratable + ":" + v.NotMigratable
}

func markText(v *VM) string {
	switch {
	case v.Mark == nil:
		return ""
	case v.Mark.Reason == "" || v.Mark.Reason == v.Mark.Cause:
		return v.Mark.Cause
	default:
		return v.Mark.Cause + ":" + v.Mark.Reason
	}
}

func migrationText(v *VM) string {
	m := v.Migration
	if m == nil {
		return ""
	}
	text := m.Phase
	if m.Percent != nil {
		text += fmt.Sprintf(" %s %d%%", terminal.Bar(*m.Percent), *m.Percent)
	}
	return text + targetOf(m)
}

// targetOf is where a VM moves to, or what that waits for.
func targetOf(m *Migration) (text string) {
	if m.Target != "" {
		text = " to " + m.Target
	}
	if m.Message != "" {
		text += ": " + m.Message
	}
	return text
}

// messageText is why the VM does not move.
func messageText(v *VM) string {
	texts := []string{v.Guest, v.NotMigratableMessage}
	if v.Mark != nil {
		texts = append(texts, v.Mark.Message)
	}
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), "; ")
}

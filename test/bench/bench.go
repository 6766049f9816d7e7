package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const idleTime = 60 * time.Second

type options struct {
	bin, dir, out           string
	rows                    []string
	rounds, guests, records int
	polite, vmis, crowd     int
	idle                    time.Duration
	version                 string // version of the agent, and the day
}

func (o options) check() error {
	for _, r := range o.rows {
		if !slices.Contains(letters(), r) {
			return fmt.Errorf("no row %q; there are %s", r, strings.Join(letters(), ", "))
		}
	}
	if o.rounds < 1 || o.guests < 1 || o.polite < 1 || o.vmis < 1 || o.crowd < 200 || o.records < 1 || o.idle < time.Second {
		return errors.New("--rounds, --guests, --polite, --vmis and --records must be positive, --crowd at least 200, --idle at least a second")
	}
	return nil
}

// bench is one run of a row.
type bench struct {
	*stage
	options
	nodeOnce *node.Node
}

type row struct {
	letter  string
	measure func(*bench) []figure
}

func rows() []row {
	return []row{
		{"a", reaction}, {"b", polite}, {"c", deaf}, {"e", restart}, {"f", idle}, {"f", running}, {"f", watching}, {"g", shims},
		{"k", evictions}, {"l", moves}, {"m", nodeDown}, {"n", inPod}, {"o", fullNode}, {"p", crowd},
	}
}

func letters() []string {
	var all []string
	for _, r := range rows() {
		all = append(all, r.letter)
	}
	return slices.Compact(all)
}

// measure measures all rows and writes the page.
func measure(ctx context.Context, o options) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return fmt.Errorf("--bin: %w", err)
	}
	o.bin = bin
	// test/node takes the agent and the shim from VMGRACE_BIN_DIR, and puts the node with
	// its state directory below TMPDIR.
	if err := errors.Join(os.Setenv("VMGRACE_BIN_DIR", bin), os.Setenv("TMPDIR", o.dir)); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	agent, err := exec.CommandContext(ctx, filepath.Join(o.bin, "node-agent"), "--version").Output()
	if err != nil {
		return fmt.Errorf("version of node-agent: %w", err)
	}
	o.version = strings.TrimPrefix(strings.TrimSpace(string(agent)), "node-agent ") + ", " + time.Now().UTC().Format(time.DateOnly)
	var figures []figure
	for _, r := range rows() {
		if len(o.rows) > 0 && !slices.Contains(o.rows, r.letter) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: row %s\n", r.letter)
		b := &bench{stage: &stage{ctx: ctx}, options: o}
		if err := b.play(func() { figures = append(figures, r.measure(b)...) }); err != nil {
			return fmt.Errorf("row %s: %w", r.letter, err)
		}
	}
	return o.write(func(w io.Writer, old string) error { return page(w, o, figures, old) })
}

func (o options) write(text func(w io.Writer, old string) error) error {
	if o.out == "" {
		return text(os.Stdout, "")
	}
	old, err := os.ReadFile(o.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("page: %w", err)
	}
	f, err := os.Create(o.out)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	figures, words, _ := bytes.Cut(old, []byte("\n## "))
	return errors.Join(text(f, string(figures)), remarks(f, words), f.Close())
}

// remarks writes back what people have written below the figures.
func remarks(w io.Writer, words []byte) error {
	if len(words) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n## %s", words)
	return err
}

// node returns the row's own node. It makes it at the first call.
func (b *bench) node() *node.Node {
	if b.nodeOnce == nil {
		b.nodeOnce = node.New(b)
	}
	return b.nodeOnce
}

// floor returns the command line of a job of the floor.
func (b *bench) floor(job string, args ...string) []string {
	return append([]string{filepath.Join(b.bin, "floor"), job}, args...)
}

// temp returns a new directory on the measured disk. It is removed when the row ends.
func (b *bench) temp() string {
	b.Helper()
	dir, err := os.MkdirTemp(b.dir, "vmgrace-bench-")
	b.must(err)
	b.Cleanup(func() { b.must(os.RemoveAll(dir)) })
	return dir
}

func (b *bench) must(err error) {
	if err != nil {
		b.Fatalf("%v", err)
	}
}

// pause waits for a time, unless the run is interrupted.
func (b *bench) pause(d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
		b.Fatalf("interrupted: %v", b.ctx.Err())
	}
}

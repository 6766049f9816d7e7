package logind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/durable"
)

const (
	dropInDir = "etc/systemd/logind.conf.d"
	// dropInName sorts after those of distributions, such as Ubuntu's
	// unattended-upgrades-logind-maxdelay.conf: logind obeys the last one.
	dropInName = "zzz-vmgrace.conf"
	dropInHead = "# Written by vmgrace's node-agent"
	setting    = "InhibitDelayMaxSec="
	// maxDropInRetry is the longest pause, in checks, between two attempts to lengthen a
	// delay that is too short. The pause begins with one, and doubles.
	maxDropInRetry = 60
	maxDropIn      = 64 << 10
)

// dropInDirs returns where logind's drop-ins are, below the root directory. A drop-in hides
// those of its name in later directories.
func dropInDirs() []string {
	return []string{dropInDir, "run/systemd/logind.conf.d", "usr/local/lib/systemd/logind.conf.d", "usr/lib/systemd/logind.conf.d"}
}

// dropIn is a file that sets the delay.
type dropIn struct {
	path string // below the root directory
	ours bool
}

func (d *dropIn) name() string { return filepath.Base(d.path) }

// dropIns returns the files that set the delay, in the order in which logind reads them.
func dropIns(root string) ([]dropIn, error) {
	var all []dropIn
	hidden := map[string]bool{}
	for _, dir := range dropInDirs() {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".conf") || hidden[e.Name()] {
				continue
			}
			hidden[e.Name()] = true
			d := dropIn{path: filepath.Join(dir, e.Name())}
			text, err := os.ReadFile(filepath.Join(root, d.path))
			if err != nil || len(text) > maxDropIn || !sets(text) {
				continue // logind cannot read it either
			}
			d.ours = bytes.HasPrefix(text, []byte(dropInHead))
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b dropIn) int { return strings.Compare(a.name(), b.name()) })
	return all, nil
}

// sets reports whether a drop-in sets the delay.
func sets(text []byte) bool {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(bytes.ReplaceAll(line, []byte(" "), nil), []byte(setting)) {
			return true
		}
	}
	return false
}

// writeDropIn writes the drop-in that makes logind delay for so long, behind all others. It
// removes those that earlier agents have written. later is the file that was last until then.
func writeDropIn(root string, delay time.Duration) (later string, err error) {
	all, err := dropIns(root)
	if err != nil {
		return "", err
	}
	name := dropInName
	if n := len(all); n > 0 && !all[n-1].ours {
		later = "/" + all[n-1].path
	}
	for _, d := range all {
		if !d.ours && d.name() >= name {
			name = strings.TrimSuffix(d.name(), ".conf") + "_vmgrace.conf"
		}
	}
	dir := filepath.Join(root, dropInDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as systemd's own
		return later, err
	}
	seconds := (delay + time.Second - 1) / time.Second
	text := fmt.Sprintf("%s (--node-shutdown-timeout).\n[Login]\n%s%d\n", dropInHead, setting, seconds)
	if err := durable.Real().WriteFile(dir, name, []byte(text), 0o644); err != nil {
		return later, err
	}
	for _, d := range all {
		if d.ours && d.name() != name && filepath.Dir(d.path) == dropInDir {
			if err := durable.Real().Remove(dir, d.name()); err != nil {
				return later, err
			}
		}
	}
	return later, nil
}

// reload makes systemd send logind SIGHUP, on which logind reads its drop-ins.
func reload(ctx context.Context, conn *dbus.Conn) error {
	call := conn.Object(systemd, systemdPath).
		CallWithContext(ctx, systemdManager+".KillUnit", dbus.FlagNoAutoStart, "systemd-logind.service", "all", int32(1))
	if call.Err != nil {
		return fmt.Errorf("the drop-in is written, but systemd cannot have logind read it (restart logind): %w", call.Err)
	}
	return nil
}

// lengthy is the state of lengthening the delay.
type lengthy struct {
	skip  int // checks before the next attempt
	pause int
	said  string
	setBy string // the file that logind obeys instead of the agent's, "" if unknown
}

func (l *lengthy) due() bool { return l.skip <= 0 }

// extend begins to make logind delay for as long as is wanted: at the start, and whenever another
// file has shortened the delay. It does not wait: a shutdown may be announced meanwhile.
func (b *bus) extend(ctx context.Context, state agent.NodeState) agent.NodeState {
	l := b.logind
	if state.Delay >= l.Wanted {
		return state
	}
	if b.lengthened == nil && l.lengthy.due() {
		l.lengthy.pause = min(max(2*l.lengthy.pause, 1), maxDropInRetry)
		l.lengthy.skip = l.lengthy.pause
		done := make(chan lengthened, 1)
		b.lengthened = done
		ctx, b.stop = context.WithTimeout(ctx, callTimeout)
		go func() {
			delay, setBy, err := b.lengthen(ctx, state.Delay)
			done <- lengthened{delay, setBy, err}
		}()
	}
	state.SetBy, state.Lengthening = l.lengthy.setBy, b.lengthened != nil
	return state
}

// lengthened is what has come of an attempt to lengthen the delay.
type lengthened struct {
	delay time.Duration
	setBy string
	err   error
}

// stopLengthening ends an attempt that is under way: a shutdown keeps the delay it began with.
func (b *bus) stopLengthening() {
	if b.lengthened != nil {
		b.stop()
		<-b.lengthened
		b.lengthened = nil
	}
}

// took takes the result of an attempt.
func (b *bus) took(got lengthened) {
	b.stop()
	b.lengthened = nil
	l := b.logind
	l.lengthy.setBy = got.setBy
	switch {
	case got.err == nil:
		l.lengthy.said = ""
		l.Log.Info("logind delays shutdowns for longer now", "delay", got.delay)
	case got.err.Error() != l.lengthy.said:
		l.lengthy.said = got.err.Error()
		l.Log.Error("cannot have logind delay shutdowns for --node-shutdown-timeout", "wanted", l.Wanted, "err", got.err)
	}
}

// lengthen writes the drop-in, makes logind read it and waits until logind confirms it, or ctx ends.
func (b *bus) lengthen(ctx context.Context, delay time.Duration) (_ time.Duration, setBy string, _ error) {
	l := b.logind
	later, err := lastPlace(ctx, func() (string, error) { return writeDropIn(l.Root, l.Wanted) })
	if err != nil {
		return delay, "", err
	}
	if later != "" {
		l.Log.Warn("another file sets for how long logind delays shutdowns: the agent's comes after it now", "file", later, "delay", delay, "wanted", l.Wanted)
	}
	if err := reload(ctx, b.conn); err != nil {
		return delay, "", err
	}
	for {
		if now, err := b.state(ctx); err == nil {
			delay = now.Delay
		}
		if delay >= l.Wanted {
			return delay, "", nil
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return delay, "", ctx.Err() // nobody asks any more
			}
			setBy, err = stillShort(l.Root, delay)
			return delay, setBy, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lastPlace waits for write no longer than ctx allows. write returns the file that was last.
func lastPlace(ctx context.Context, write func() (string, error)) (later string, err error) {
	answer := make(chan string, 1)
	err = durable.Within(ctx, "the disk", func() error {
		file, err := write()
		answer <- file
		return err
	})
	if err != nil {
		return "", fmt.Errorf("logind's drop-in: %w", err)
	}
	return <-answer, nil
}

// stillShort returns the file that logind obeys, if there is one behind the agent's.
func stillShort(root string, delay time.Duration) (setBy string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), systemdTimeout)
	defer cancel()
	setBy, err = lastPlace(ctx, func() (string, error) {
		all, err := dropIns(root)
		if n := len(all); err == nil && n > 0 && !all[n-1].ours {
			return "/" + all[n-1].path, nil
		}
		return "", err
	})
	switch {
	case err != nil:
		return "", err
	case setBy != "":
		return setBy, fmt.Errorf("logind still delays for %v at most, as %s has it", delay, setBy)
	default:
		return "", fmt.Errorf("logind still delays for %v at most, though no drop-in comes after the agent's: restart logind", delay)
	}
}

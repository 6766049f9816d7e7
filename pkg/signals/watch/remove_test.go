package watch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// arrives puts a trigger into its place, as a shim does.
func arrives(t *testing.T, path, content string) {
	t.Helper()
	kit.Write(t, filepath.Join(path, ".new"), content)
	kit.Must(t, os.Rename(filepath.Join(path, ".new"), filepath.Join(path, signals.FileTrigger)))
}

// names returns the files of a launcher directory.
func names(t *testing.T, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	kit.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOnlyTheTriggerThatWasSeenIsRemoved(t *testing.T) {
	const before, after = `{"version":1,"uid":"u1","signal":"SIGTERM"}`, `{"version":1,"uid":"u1","signal":"SIGINT"}`
	for name, c := range map[string]struct {
		// Steps of a launcher before the removal, after its look, and once the trigger is
		// taken away.
		first, second, third func(t *testing.T, path string)
		stays                bool
	}{
		"nothing else happens": {},
		"it is gone before": {first: func(t *testing.T, path string) {
			t.Helper()
			kit.Must(t, os.Remove(filepath.Join(path, signals.FileTrigger)))
		}},
		"it is gone after the look": {second: func(t *testing.T, path string) {
			t.Helper()
			kit.Must(t, os.Remove(filepath.Join(path, signals.FileTrigger)))
		}},
		"another one came before": {first: func(t *testing.T, path string) {
			t.Helper()
			arrives(t, path, after)
		}, stays: true},
		"another one comes after the look": {second: func(t *testing.T, path string) {
			t.Helper()
			arrives(t, path, after)
		}, stays: true},
		"another one comes while it is away": {third: func(t *testing.T, path string) {
			t.Helper()
			arrives(t, path, after)
		}, stays: true},
		"one comes after the look and one more while that is away": {
			second: func(t *testing.T, path string) {
				t.Helper()
				arrives(t, path, before)
			},
			third: func(t *testing.T, path string) {
				t.Helper()
				arrives(t, path, after)
			}, stays: true,
		},
		"it is written over after the look": {second: func(t *testing.T, path string) {
			t.Helper()
			kit.Write(t, filepath.Join(path, signals.FileTrigger), after)
			kit.Must(t, os.Chtimes(filepath.Join(path, signals.FileTrigger), time.Unix(1, 0), time.Unix(1, 0)))
		}, stays: true},
		"it is taken from where it is away": {third: func(t *testing.T, path string) {
			t.Helper()
			kit.Must(t, os.Remove(filepath.Join(path, signals.FileTakenTrigger)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: a trigger that was seen.
			d, path := given(t)
			arrives(t, path, before)
			seen := look(t, d).TriggerID
			if c.first != nil {
				c.first(t, path)
			}
			// When it is removed, and its launcher does something meanwhile.
			steps := []func(*testing.T, string){c.second, c.third}
			kit.Must(t, d.removeTrigger(seen, func() {
				if steps[0] != nil {
					steps[0](t, path)
				}
				steps = steps[1:]
			}))
			// Then: no other one is lost, and nothing is left lying about.
			v := look(t, d)
			if v.Trigger != c.stays || len(names(t, path)) > 1 {
				t.Errorf("%+v in %v", v, names(t, path))
			}
			if content, _ := os.ReadFile(filepath.Join(path, signals.FileTrigger)); c.stays && string(content) != after {
				t.Errorf("what stays is %q", content)
			}
		})
	}
}

func TestATriggerThatAnAgentDiedOverIsNotLost(t *testing.T) {
	// Given: an agent that was killed with a trigger taken away.
	d, path := given(t)
	arrives(t, path, `{"version":1,"uid":"u1"}`)
	seen := look(t, d).TriggerID
	kit.Must(t, os.Rename(filepath.Join(path, signals.FileTrigger), filepath.Join(path, signals.FileTakenTrigger)))
	// Then: the next one sees it as it was.
	v := look(t, d)
	if !v.Trigger || v.TriggerID != seen || v.TriggerUID != "u1" {
		t.Fatalf("%+v", v)
	}
	// And removes it, or sees the later one.
	kit.Must(t, d.RemoveTrigger(seen))
	if v := look(t, d); v.Trigger || len(names(t, path)) != 0 {
		t.Errorf("%+v, %v", v, names(t, path))
	}
	kit.Write(t, filepath.Join(path, signals.FileTakenTrigger), `{"version":1,"uid":"old"}`)
	arrives(t, path, `{"version":1,"uid":"new"}`)
	if v := look(t, d); v.TriggerUID != "new" {
		t.Errorf("%+v", v)
	}
	kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
	if v := look(t, d); v.Trigger || len(names(t, path)) != 0 {
		t.Errorf("%+v, %v", v, names(t, path))
	}
}

func TestWhatATenantPutsInTheWayOfARemovalHurtsOnlyItself(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	kit.Write(t, outside, "precious")
	for name, plant := range map[string]func(path string) error{
		"a link":           func(p string) error { return os.Symlink(outside, p) },
		"a dangling link":  func(p string) error { return os.Symlink("nowhere", p) },
		"a FIFO":           func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a directory":      func(p string) error { return os.Mkdir(p, 0o700) },
		"a full directory": func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, inPlace := range []bool{false, true} {
				d, path := given(t)
				arrives(t, path, "")
				seen := look(t, d).TriggerID
				if !inPlace { // in the place of the trigger, else where it is taken to
					kit.Must(t, plant(filepath.Join(path, signals.FileTakenTrigger)))
				}
				_ = d.removeTrigger(seen, func() {
					if inPlace {
						_ = os.Remove(filepath.Join(path, signals.FileTrigger))
						_ = plant(filepath.Join(path, signals.FileTrigger))
					}
				})
				if v := look(t, d); inPlace && v.Trigger {
					t.Errorf("%+v", v)
				}
				if content, err := os.ReadFile(outside); err != nil || string(content) != "precious" {
					t.Errorf("the link's target is %q, %v", content, err)
				}
			}
		})
	}
}

package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// nodeWith makes the part of a node's file system that is looked at: files with
// their content, and links by "-> target".
func nodeWith(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			if target, link := strings.CutPrefix(content, "-> "); link {
				err = os.Symlink(target, path)
			} else {
				err = os.WriteFile(path, []byte(content), 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	systemd  = "run/systemd/system/.keep"
	wanted   = "etc/systemd/system/multi-user.target.wants/libvirt-guests.service"
	qemuConf = "etc/libvirt/qemu.conf"
)

func TestALibvirtThatEndsVMsItselfIsFound(t *testing.T) {
	const unit = "-> /lib/systemd/system/libvirt-guests.service"
	for name, c := range map[string]struct {
		files map[string]string
		want  map[string]string
	}{
		"nothing there": {nil, nil},
		"enabled":       {map[string]string{systemd: "", wanted: unit}, map[string]string{"libvirt-guests": "libvirt-guests.service is enabled"}},
		"enabled by the distribution": {
			map[string]string{systemd: "", "usr/lib/systemd/system/libvirtd.service.wants/libvirt-guests.service": "-> ../libvirt-guests.service", "lib": "-> usr/lib"},
			map[string]string{"libvirt-guests": "libvirt-guests.service is enabled"},
		},
		"started by hand": {
			map[string]string{systemd: "", "run/systemd/units/invocation:libvirt-guests.service": "-> 0123456789abcdef"},
			map[string]string{"libvirt-guests": "libvirt-guests.service is started"},
		},
		"installed, not enabled":             {map[string]string{systemd: "", "lib/systemd/system/libvirt-guests.service": "[Unit]", "etc/default/libvirt-guests": "ON_SHUTDOWN=shutdown"}, nil},
		"another is enabled":                 {map[string]string{systemd: "", "etc/systemd/system/multi-user.target.wants/libvirtd.service": unit}, nil},
		"masked":                             {map[string]string{systemd: "", wanted: unit, "etc/systemd/system/libvirt-guests.service": "-> /dev/null"}, nil},
		"enabled, in a node without systemd": {map[string]string{wanted: unit}, nil},
		"libvirt's own settings": {
			map[string]string{qemuConf: "#auto_shutdown_poweroff = \"all\"\nauto_shutdown_try_save = \"none\"\n  auto_shutdown_try_shutdown=\"all\" # all\nauto_shutdown_poweroff = \"transient\"\nauto_shutdown_wait = 30\n"},
			map[string]string{"auto_shutdown": "auto_shutdown_try_shutdown = all, auto_shutdown_poweroff = transient"},
		},
		"libvirt's settings as packaged": {map[string]string{qemuConf: "# auto_shutdown_try_save = \"persistent\"\n#auto_shutdown_try_shutdown = \"all\"\nuser = \"root\"\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root, found := nodeWith(t, c.files), map[string]string{}
			for _, look := range conflicts() {
				got, err := look.lookIn(root)
				if err != nil {
					t.Fatal(err)
				}
				if got != "" {
					found[look.with] = got
				}
			}
			if !maps.Equal(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// shown is what the metric shows.
type shown struct{ sync.Map }

func (s *shown) set(with, found string) { s.Store(with, found != "") }

func (s *shown) String() string {
	all := map[any]any{}
	s.Range(func(with, found any) bool { all[with] = found; return true })
	return fmt.Sprint(all)
}

func TestAConflictIsSaidOnceAndShownUntilItIsOver(t *testing.T) {
	root := nodeWith(t, map[string]string{systemd: "", wanted: "-> /x"})
	synctest.Test(t, func(t *testing.T) {
		// given
		var said bytes.Buffer
		var metric shown
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go watchConflicts(ctx, root, metric.set, slog.New(slog.NewTextHandler(&said, nil)))
		// when
		for range 3 {
			<-time.After(conflictInterval)
			synctest.Wait()
		}
		// then
		if lines := strings.Count(said.String(), "level=WARN"); lines != 1 || !strings.Contains(said.String(), "systemctl disable --now libvirt-guests.service") {
			t.Errorf("want one line that says what to do:\n%s", said.String())
		}
		if got, want := metric.String(), "map[auto_shutdown:false libvirt-guests:true]"; got != want {
			t.Errorf("shown is %s, want %s", got, want)
		}
		// and: mended while the agent runs
		if err := os.Remove(filepath.Join(root, wanted)); err != nil {
			t.Fatal(err)
		}
		<-time.After(conflictInterval)
		synctest.Wait()
		if got, want := metric.String(), "map[auto_shutdown:false libvirt-guests:false]"; got != want {
			t.Errorf("shown is %s after it was mended, want %s", got, want)
		}
	})
}

func TestANodeThatCannotBeLookedAtIsNoNodeWithoutConflicts(t *testing.T) {
	root := nodeWith(t, map[string]string{qemuConf: "-> /etc/hostname"}) // leads out of the node's file system
	synctest.Test(t, func(t *testing.T) {
		for _, dir := range []string{filepath.Join(root, "none"), root} {
			var said bytes.Buffer
			var metric shown
			ctx, stop := context.WithCancel(t.Context())
			go watchConflicts(ctx, dir, metric.set, slog.New(slog.NewTextHandler(&said, nil)))
			<-time.After(3 * conflictInterval)
			synctest.Wait()
			stop()
			if _, known := metric.Load("auto_shutdown"); known || !strings.Contains(said.String(), "cannot tell") {
				t.Errorf("%s: shown is %s, and it says:\n%s", dir, &metric, said.String())
			}
		}
	})
}

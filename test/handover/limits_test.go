//go:build !unit

package handover

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// writes is a guest that writes faster than the options of these tests let it be sent.
var writes = node.Spec{Behaviour: "busy=48"}

// Given a guest that needs a CPU feature and a target without it. When the guest is to be
// moved, then it stays and runs on, and the reason names the feature. Both hosts have this
// machine's CPU, so the test gives the target a QEMU that turns the feature off.
func TestAGuestWhoseCPUTheTargetDoesNotHaveStaysWhereItIs(t *testing.T) {
	w := given(t)
	const feature = "avx2"
	v := w.guarded(node.Spec{CPUFeature: feature})
	v.watchForTwo()
	w.b.withoutCPUFeature(t, feature)
	v.schedule(w.b, "")
	if v.decided() {
		t.Fatal("it was moved")
	}
	if why := v.whyFailed(); !strings.Contains(why, feature) || strings.Contains(why, "\n") {
		t.Errorf("failed: %s", why)
	}
	if !w.a.runs(v.Domain) {
		t.Error("the guest does not run on")
	}
	v.ends()
}

// withoutCPUFeature replaces QEMU by a script that turns a CPU feature off, until the test
// ends. The script calls QEMU under the path of another architecture's QEMU.
func (h *host) withoutCPUFeature(t *testing.T, feature string) {
	t.Helper()
	const qemu, moved = "/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-system-i386"
	wrapper := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/bash\nexec " + moved + ` "${@//` + feature + "=on/" + feature + `=off}"` + "\n"
	kit.Program(t, wrapper, script)
	run := func(script string) error {
		out, err := h.Command("sh", "-c", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	}
	if err := run("mount --bind " + qemu + " " + moved + " && mount --bind " + wrapper + " " + qemu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run("umount " + qemu + " " + moved); err != nil {
			t.Error(err)
		}
	})
}

package shim

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestALauncherSaysWhetherItsGuestCanBeMoved(t *testing.T) {
	running := able(t, "running").says()
	if running.Machine.Features == "" {
		t.Error("it does not say which features its CPU has")
	}
	want := signals.Moving{
		Able: signals.AbleOK, Guest: signals.GuestRunning,
		Machine: signals.Machine{Type: "pc-q35-7.2", Accelerator: "kvm", CPU: "Skylake-Client-v3", Features: running.Machine.Features},
	}
	if running != want {
		t.Errorf("of a guest that runs: %+v", running)
	}
	want.Guest, want.State = "inmigrate", signals.StateSetup
	if empty := able(t, "inmigrate").says(); empty != want {
		t.Errorf("of an empty QEMU: %+v", empty)
	}
}

func TestALauncherSaysWhyItsGuestCannotBeMoved(t *testing.T) {
	t.Run("a device that cannot be moved, until it is gone", func(t *testing.T) {
		qemu := newFakeQEMU(t, "running")
		qemu.becomes("running", map[string]any{"blocked-reasons": []string{"VFIO device", "another"}})
		m := newMoving(t, Config{}, qemu)
		m.found()
		m.until("the reason", func(v signals.Moving) bool { return v.Able == "QEMU: VFIO device" })
		qemu.becomes("running", map[string]any{})
		m.until("it can", func(v signals.Moving) bool { return v.Able == signals.AbleOK })
	})
	t.Run("a CPU without a list of features", func(t *testing.T) {
		qemu := newFakeQEMU(t, "running")
		qemu.refuse(`qom-get{"path":"/machine/unattached/device[0]","property":"feature-words"}`, "Property 'host-arm-cpu.feature-words' not found")
		m := newMoving(t, Config{}, qemu)
		m.found()
		if v := m.until("it can", func(v signals.Moving) bool { return v.Able == signals.AbleOK }); v.Machine.Features != "" {
			t.Errorf("%+v", v)
		}
	})
	t.Run("an old QEMU", func(t *testing.T) {
		qemu := newFakeQEMU(t, "running")
		qemu.refuse("query-migrate-capabilities", "The command query-migrate-capabilities has not been found")
		m := newMoving(t, Config{}, qemu)
		m.found()
		m.until("the reason", func(v signals.Moving) bool { return strings.Contains(v.Able, "has not been found") })
	})
	t.Run("no monitor, until there is one", func(t *testing.T) {
		qemu := newFakeQEMU(t, "running")
		kit.Must(t, os.Rename(qemu.path, qemu.path+".later"))
		m := newMoving(t, Config{}, qemu)
		if v := m.says(); v.Able != noAnswer {
			t.Errorf("at first: %+v", v)
		}
		m.found()
		m.until("the reason", func(v signals.Moving) bool { return strings.Contains(v.Able, "no such file") })
		kit.Must(t, os.Rename(qemu.path+".later", qemu.path))
		m.until("it can", func(v signals.Moving) bool { return v.Able == signals.AbleOK })
	})
	t.Run("a command that asks", func(t *testing.T) {
		m := newMoving(t, Config{Ask: Ask{Exec: "true"}}, nil)
		m.found()
		if v := m.asks(grace.MoveRequest{Do: grace.MoveLook}); v.Able != noMonitor || v.Result != noMonitor {
			t.Errorf("%+v", v)
		}
	})
	t.Run("it should wait, and runs", func(t *testing.T) {
		m := newMoving(t, Config{Incoming: true}, newFakeQEMU(t, "running"))
		m.found()
		m.until("the reason", func(v signals.Moving) bool {
			return strings.Contains(v.Able, "--incoming-args") && v.State == signals.StateNone
		})
	})
}

func TestAMonitorThatDoesNotAnswerWellIsNoMonitor(t *testing.T) {
	flood := slices.Repeat([]string{`{"event": "` + strings.Repeat("x", 1000) + `"}`}, 1000)
	for name, c := range map[string]struct {
		greeting string
		answer   func(command, id string) []string
		want     string
	}{
		"another holds it": {"", qemu("running"), signals.ResultBusy},
		"hangs":            {greeting, func(string, string) []string { return nil }, "no answer in time"},
		"floods":           {greeting, func(string, string) []string { return flood }, "says too much"},
		"hangs up":         {"x", qemu("running"), "invalid character"},
		"has no CPU": {greeting, func(command, id string) []string {
			switch command {
			case "query-cpus-fast":
				return []string{`{"return": [], "id": ` + id + `}`}
			case "qom-get":
				return []string{`{"return": "x", "id": ` + id + `}`}
			}
			return qemu("running")(command, id)
		}, "no CPU"},
		"answers otherwise": {greeting, func(command, id string) []string {
			if command == "query-status" {
				return qemu("running")(command, id)
			}
			return []string{`{"return": [7], "id": ` + id + `}`}
		}, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t, Config{Ask: Ask{QMP: listen(t, c.greeting, c.answer).path}}, nil)
			m.found()
			m.until("why not", func(v signals.Moving) bool { return v.Able != noAnswer })
			if v := m.says(); !strings.Contains(v.Able, c.want) || v.Machine != (signals.Machine{}) {
				t.Errorf("%+v", v)
			}
			// And a request says so, too.
			if v := m.asks(grace.MoveRequest{Do: grace.MoveLook}); !strings.Contains(v.Result, c.want) {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestHowATargetsQEMUIsStarted(t *testing.T) {
	env := map[string]string{"VM_NAMESPACE": "ns", "VM_NAME": "vm", "VM_UID": "u-1", launcherpod.IncomingVariable: "m-1"}
	get := func(key string) string { return env[key] }
	for args, want := range map[string]string{
		"--ask-with=qmp:/q -- qemu -m 1":                  "qemu -m 1 -incoming defer -S",
		"--incoming-args=--wait --ask-with=qmp:/q -- run": "run --wait",
		"--ask-with=exec:x -- run":                        "only with --ask-with=qmp:",
		"--ask-with=qmp:/q --ask-with=exec:x -- run":      "only with --ask-with=qmp:",
		"--ask-with=exec:x --ask-with=qmp:/q -- run":      "run -incoming defer -S",
		"-- run": "only with --ask-with=qmp:",
		"--incoming-args= --ask-with=qmp:/q -- run": "--incoming-args is empty",
		"--pid-file=/p": "",
	} {
		c, err := ParseConfig(strings.Fields(args), get)
		if got := strings.Join(c.Command, " "); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) || c.Incoming != true {
			t.Errorf("%s: %q, %v", args, got, err)
		}
	}
	delete(env, launcherpod.IncomingVariable)
	if c, err := ParseConfig([]string{"--ask-with=qmp:/q", "--", "qemu"}, get); err != nil || len(c.Command) != 1 || c.Incoming {
		t.Errorf("%+v, %v", c, err)
	}
}

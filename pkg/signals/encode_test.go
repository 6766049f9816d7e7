package signals

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// What is written without encoding/json must be read with it.
func FuzzHandWrittenFiles(f *testing.F) {
	f.Add("ns", "vm", "u-1", "SIGTERM", "30", int64(1))
	f.Add("\"\\\n\x00", "é\u2028", "<>&", "\xff", "-0", int64(-1))
	f.Fuzz(func(t *testing.T, namespace, name, uid, signal, period string, seconds int64) {
		valid := func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
		if len(namespace)+len(name)+len(uid)+len(signal)+len(period) > MaxSize/8 {
			return
		}
		vm, err := ParseVM(VM{Namespace: namespace, Name: name, UID: uid, Grace: period}.Encode())
		if (uid == "" || ValidUID(uid)) && (err != nil || vm.Namespace != valid(namespace) || vm.Name != valid(name) || vm.UID != uid) {
			t.Errorf("%+v, %v", vm, err)
		}
		if isInteger(period) && err == nil && vm.Grace != period {
			t.Errorf("grace period %q became %q", period, vm.Grace)
		}
		at := time.Unix(seconds%1e9, 0).UTC()
		trigger, ok := ParseTrigger(Trigger{UID: uid, Signal: signal, Time: at}.Encode())
		if ok != (uid != "") || ok && (trigger.UID != valid(uid) || trigger.Signal != valid(signal) || !trigger.Time.Equal(at)) {
			t.Errorf("%+v, %v", trigger, ok)
		}
	})
}

// The shim's reader may miss an end, but must not see one that is not there.
func FuzzSaysStopped(f *testing.F) {
	f.Add([]byte(`{"version": 1, "uid": "u", "phase": "Stopped", "x": [{"phase": "Running"}]}`), "m")
	f.Fuzz(func(t *testing.T, content []byte, message string) {
		status, err := ParseStatus(content)
		// encoding/json also takes Phase for phase, and the last one of two.
		if err == nil && saysStopped(content, "u") && (status.UID != "u" || status.Phase != grace.Stopped) &&
			strings.Count(strings.ToLower(string(content)), "phase") == 1 && strings.Count(strings.ToLower(string(content)), "uid") == 1 {
			t.Errorf("%q", content)
		}
		for _, phase := range []grace.Phase{grace.Running, grace.ShuttingDown, grace.Destroying, grace.Stopped} {
			encoded := Status{UID: "u", Phase: phase, Message: message}.Encode()
			if saysStopped(encoded, "u") != (phase == grace.Stopped) || saysStopped(encoded, "v") {
				t.Errorf("%s", encoded)
			}
		}
	})
}

package signals

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func FuzzFiles(f *testing.F) {
	f.Add("ns", "vm", "u-1", "SIGTERM", "30", int64(1))
	f.Add("\"\\\n\x00", "é\u2028", "<>&", "\xff", "-0", int64(-1))
	f.Fuzz(func(t *testing.T, namespace, name, uid, signal, period string, seconds int64) {
		valid := func(s string) string { return string([]rune(s)) } // invalid UTF-8 becomes U+FFFD
		if len(namespace)+len(name)+len(uid)+len(signal)+len(period) > MaxSize/8 {
			return
		}
		vm, err := ParseVM(VM{Namespace: namespace, Name: name, UID: uid, Grace: period}.Encode())
		if (uid == "" || ValidUID(uid)) && (err != nil || vm.Namespace != valid(namespace) || vm.Name != valid(name) || vm.UID != uid) {
			t.Errorf("%+v, %v", vm, err)
		}
		if _, failed := grace.ParseSeconds(period); failed == nil && json.Valid([]byte(period)) && err == nil && vm.Grace != period {
			t.Errorf("grace period %q became %q", period, vm.Grace)
		}
		at := time.Unix(seconds%1e9, 0).UTC()
		var trigger Trigger
		content := Trigger{UID: uid, Signal: signal, Time: at}.Encode()
		if err := json.Unmarshal(content, &trigger); err != nil || trigger != (Trigger{valid(uid), valid(signal), at}) || TriggerUID(content) != valid(uid) {
			t.Errorf("%s: %+v, %v", content, trigger, err)
		}
		var status grace.Status
		content = EncodeStatus(grace.Status{UID: uid, Phase: grace.Stopped, EndedAt: at, Message: signal, Request: uint64(seconds)})
		if err := json.Unmarshal(content, &status); err != nil || status != (grace.Status{UID: valid(uid), Phase: grace.Stopped, EndedAt: at, Message: valid(signal), Request: uint64(seconds)}) {
			t.Errorf("%s: %+v, %v", content, status, err)
		}
	})
}

func TestARequestIsReadForItsVMAlone(t *testing.T) {
	for text, want := range map[string]uint64{
		string(EncodeStatus(grace.Status{UID: "u", Phase: grace.ShuttingDown, Request: 12})): 12,
		string(EncodeStatus(grace.Status{UID: "v", Phase: grace.ShuttingDown, Request: 12})): 0,
		`{"uid":"u","request":-1}`:                      0,
		`{"uid":"u","request":"12"}`:                    0,
		`{"uid":"u","request":18446744073709551616}`:    0,
		`{"uid":"u","x":{"request":12}}`:                0,
		`{"uid":"u","request":12`:                       0,
		`{"uid" : "u" , "request" : 12 } `:              12,
		`{"x":{"uid":"u"},"uid":"v","request":12}`:      0,
		`{"uid":"v","x":[{"uid":"u"}],"request":12}`:    0,
		`[{"uid":"u","request":12}]`:                    0,
		`{"uid":"u","message":{"x":1},"request":5}`:     5,
		`{"uid":"u","y":"\"","request":3,"phase":"\\"}`: 3,
	} {
		if got := statusFor("u", []byte(text)).Request; got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

func TestWhatALauncherSaysOfItsVMProcess(t *testing.T) {
	vm := VM{Namespace: "ns", Name: "vm", UID: "u", Asking: Asking{Asks: AsksLauncher, PID: 7, Requested: 3, Result: ResultOK}}
	if got, err := ParseVM(vm.Encode()); err != nil || got != vm {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]Asking{
		`"asks":"libvirt","pid":7`:                             {},
		`"pid":7,"requested":3`:                                {},
		`"asks":"launcher","pid":-7,"requested":-3`:            {Asks: AsksLauncher},
		`"asks":"launcher","pid":4294967296,"requested":"x"`:   {Asks: AsksLauncher},
		`"asks":"launcher","pid":"7","result":{}`:              {Asks: AsksLauncher},
		`"asks":"launcher","pid":7,"result":"\n\u0000é\u202e"`: {Asks: AsksLauncher, PID: 7, Result: "????"},
	} {
		if got, err := ParseVM([]byte(`{"version":1,"uid":"u",` + text + `}`)); err != nil || got != (VM{UID: "u", Asking: want}) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

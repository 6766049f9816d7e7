package signals

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)

func TestFilesSayWhatTheContractShows(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"vm", VM{Namespace: "ns", Name: "vm", UID: "u-1", Grace: "30"}.Encode(),
			`{"version":1,"namespace":"ns","name":"vm","uid":"u-1","gracePeriodSeconds":30}`},
		{"vm without a grace period", VM{Namespace: "ns", Name: "vm", UID: "u-1"}.Encode(),
			`{"version":1,"namespace":"ns","name":"vm","uid":"u-1"}`},
		{"vm, zero and huge are passed on", VM{UID: "u", Grace: "9223372036854775807"}.Encode(),
			`{"version":1,"namespace":"","name":"","uid":"u","gracePeriodSeconds":9223372036854775807}`},
		{"vm with a grace period that is not JSON", VM{UID: "u", Grace: "soon"}.Encode(),
			`{"version":1,"namespace":"","name":"","uid":"u","gracePeriodSeconds":"soon"}`},
		{"trigger", Trigger{UID: "u-1", Signal: "SIGTERM", Time: noon}.Encode(),
			`{"version":1,"uid":"u-1","signal":"SIGTERM","time":"2026-03-01T12:00:00.123Z"}`},
		{"running", EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Running}),
			`{"version":1,"uid":"u-1","phase":"Running"}`},
		{"stopped", EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped, Cause: grace.LauncherSignal, StartedAt: noon,
			Deadline: noon.Add(4 * time.Second).In(time.FixedZone("", 3600)), Outcome: grace.Forced, EndedAt: noon.Add(4 * time.Second), Message: "m"}),
			`{"version":1,"uid":"u-1","phase":"Stopped","cause":"LauncherSignal","startedAt":"2026-03-01T12:00:00.123Z",` +
				`"deadline":"2026-03-01T12:00:04.123Z","outcome":"Forced","endedAt":"2026-03-01T12:00:04.123Z","message":"m"}`},
	} {
		if diff := cmp.Diff(c.want+"\n", string(c.got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}

func TestANewerVersionIsReadForTheFieldsKnownHere(t *testing.T) {
	const newer = `{"version":7,"uid":"u","phase":"Migrating","namespace":"n","name":"v","x":{"y":[1]},"signal":{"n":15},"time":12}`
	if vm, err := ParseVM([]byte(newer)); err != nil || vm.UID != "u" {
		t.Errorf("ParseVM: %+v, %v", vm, err)
	}
	if uid := TriggerUID([]byte(newer)); uid != "u" {
		t.Errorf("TriggerUID: %q", uid)
	}
}

func TestABadGracePeriodNeverSpoilsTheRest(t *testing.T) {
	long := strings.Repeat("9", 500)
	for raw, want := range map[string]string{
		`30`: `30`, `0`: `0`, `-5`: `-5`, `null`: ``, `1.5`: `1.5`, `1e3`: `1e3`, `true`: `true`,
		`"30"`: `"30"`, `{"a":[]}`: `{"a":[]}`, `9223372036854775807`: `9223372036854775807`,
		long: long, `"` + long + `"`: `"` + long[:63] + "…", `"` + strings.Repeat("é", 200) + `"`: `"` + strings.Repeat("é", 31) + "…",
	} {
		vm, err := ParseVM([]byte(`{"version":1,"namespace":"ns","name":"vm","uid":"u","gracePeriodSeconds":` + raw + `}`))
		if err != nil || vm.Grace != want || vm.Name != "vm" {
			t.Errorf("%.80s: %+v, %v; want grace %q", raw, vm, err, want)
		}
		if _, err := grace.ParseSeconds(vm.Grace); err == nil && want != "30" && want != "0" {
			t.Errorf("%.80s was read as a grace period", raw)
		}
	}
}

func TestFilesThatAreNotOfTheProtocol(t *testing.T) {
	deep := strings.Repeat("[", MaxSize/2) + strings.Repeat("]", MaxSize/2)
	for _, content := range []string{
		"", " ", "null", "1", `"x"`, "[]", "{}", "{", `{"version":0,"uid":"u"}`, `{"version":-1,"uid":"u"}`,
		`{"version":"1","uid":"u"}`, `{"version":1.5,"uid":"u"}`, `{"version":1,"uid":5}`, `{"version":1,"uid":"u"} x`,
		`{"version":99999999999999999999,"uid":"u"}`, deep, `{"version":1,"uid":` + deep[100:len(deep)-100] + `}`,
	} {
		if _, err := ParseVM([]byte(content)); !errors.Is(err, ErrFormat) {
			t.Errorf("ParseVM(%.40q): %v", content, err)
		}
		if uid := TriggerUID([]byte(content)); uid != "" {
			t.Errorf("TriggerUID(%.40q): %q", content, uid)
		}
	}
	large := []byte(`{"version":1,"uid":"u"}` + strings.Repeat(" ", MaxSize))
	_, vmErr := ParseVM(large)
	if uid := TriggerUID(large); uid != "" || !errors.Is(vmErr, ErrTooLarge) {
		t.Errorf("a file over the limit was read: %v, %q", vmErr, uid)
	}
	if _, err := ParseVM([]byte(`{"version":1,"uid":"a\nb"}`)); !errors.Is(err, ErrUID) {
		t.Errorf("a uid with a newline: %v", err)
	}
}

func TestNestingThatIsUnknownIsIgnored(t *testing.T) {
	nested := strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64)
	content := []byte(`{"version":1,"uid":"u","phase":"Running","other":` + nested + `}`)
	_, vmErr := ParseVM(content)
	if uid := TriggerUID(content); uid != "u" || vmErr != nil {
		t.Errorf("%q, %v", uid, vmErr)
	}
}

func TestAUIDIsAWordWithoutSurprises(t *testing.T) {
	for uid, want := range map[string]bool{
		"6a1b0c9e-5d0f-4b5e-9f0a-0123456789ab": true, "UID_1.2:3": true, strings.Repeat("a", 128): true,
		"": false, strings.Repeat("a", 129): false, "a b": false, "a\n": false, "a/b": false, "<": false, "é": false, "a;": false,
	} {
		if ValidUID(uid) != want {
			t.Errorf("ValidUID(%q) is not %v", uid, want)
		}
	}
}

func FuzzParseVM(f *testing.F) {
	f.Add([]byte(`{"version":1,"namespace":"ns","name":"vm","uid":"u","gracePeriodSeconds":30}`))
	f.Add([]byte(`{"version":1,"gracePeriodSeconds":"x"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		vm, err := ParseVM(content)
		if err != nil {
			return
		}
		again, err := ParseVM(vm.Encode())
		again.Grace, vm.Grace = "", "" // a shortened one is not JSON
		if err != nil || again != vm {
			t.Errorf("%q: %+v, then %+v, %v", content, vm, again, err)
		}
	})
}

func FuzzTriggerUID(f *testing.F) {
	f.Add([]byte(`{"version":1,"uid":"u","signal":"SIGTERM","time":"2026-03-01T12:00:00.123Z"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		uid := TriggerUID(content)
		if again := TriggerUID(Trigger{UID: uid}.Encode()); again != uid {
			t.Errorf("%q: %q, then %q", content, uid, again)
		}
	})
}

package gracecache

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Records on disk outlive the agent that wrote them: these files must be read
// for ever.
func TestGoldenFilesAreReadForEverAndWrittenByteForByte(t *testing.T) {
	never := shutdownRecord()
	never.Period = grace.Period{Length: grace.MaxPeriod, Source: grace.SourceDomain}
	never.Shutdown = grace.Shutdown{
		Cause: grace.VMIDeleted, Start: 1, Deadline: grace.Never, DryRun: true, Requested: true, Signalled: true,
		StartedAt: never.Shutdown.StartedAt, DeadlineAt: never.Shutdown.StartedAt.Add(grace.MaxPeriod),
	}
	over := shutdownRecord()
	over.Shutdown.Over = grace.GuestOff
	bare := grace.Record{Namespace: "a", Name: "b", Period: grace.Period{Source: grace.SourceLauncher}}
	inCluster := runningRecord()
	inCluster.VMICreated = time.Date(2026, 2, 28, 9, 0, 1, 0, time.UTC)
	inCluster.Pod = "d3b07384-d9a0-4c9b-8f6e-1c2d3e4f5a6b"
	launcher := inCluster
	launcher.Launcher.Device, launcher.Launcher.Pod = 41, inCluster.Pod
	// As written by agents that could not read /proc: kept as it is, nothing added.
	noStart := runningRecord()
	noStart.Instance.Start, noStart.Launcher.Start = 0, 0
	for name, want := range map[string]grace.Record{
		"v1-launcher.json":      launcher,
		"v1-no-start-time.json": noStart,
		"v1-running.json":       runningRecord(),
		"v1-shutdown.json":      shutdownRecord(),
		"v1-held.json":          heldRecord(),
		"v1-limits.json":        never,
		"v1-over.json":          over,
		"v1-bare.json":          bare,
		"v1-cluster.json":       inCluster,
	} {
		t.Run(name, func(t *testing.T) {
			golden, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(golden)
			if err != nil {
				t.Fatal(err)
			}
			wantRecords(t, []grace.Record{got}, want)
			if diff := cmp.Diff(string(golden), string(encoded(t, want))); diff != "" {
				t.Errorf("encoding (-golden +now):\n%s", diff)
			}
		})
	}
}

func TestTheDocumentShowsTheFormatAsItIs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/on-disk-format.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(doc, encoded(t, shutdownRecord())) {
		t.Error("its example is not what is written for that record")
	}
}

func TestNewerAgentsAdditionsAreIgnored(t *testing.T) {
	golden, err := os.ReadFile("testdata/v1-newer.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	wantRecords(t, []grace.Record{got}, shutdownRecord())
}

func TestAnyRecordSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		mono := rapid.Map(rapid.Int64(), func(n int64) grace.Mono { return grace.Mono(n) })
		wall := rapid.Map(rapid.Int64Range(0, 7900*365*86400_000), func(ms int64) time.Time { return time.UnixMilli(ms).UTC() })
		want := grace.Record{
			Namespace: rapid.StringMatching(`[a-z]([-a-z0-9]{0,20}[a-z0-9])?`).Draw(t, "namespace"),
			Name:      rapid.StringMatching(`[a-z]([-.a-z0-9]{0,60}[a-z0-9])?`).Draw(t, "name"),
			UID:       text.Draw(t, "uid"),
			BootID:    text.Draw(t, "boot"),
			Period: grace.Period{
				Length: time.Duration(rapid.Int64Range(0, int64(grace.MaxPeriod)).Draw(t, "length")),
				Source: grace.Source(text.Draw(t, "source")),
			},
			Instance: grace.Instance{UUID: text.Draw(t, "uuid"), PID: rapid.IntMin(0).Draw(t, "pid"), Start: rapid.Uint64().Draw(t, "start")},
			VMICreated: rapid.Custom(func(t *rapid.T) time.Time {
				return time.Unix(rapid.Int64Range(1, 200_000_000_000).Draw(t, "seconds"), 0).UTC()
			}).Draw(t, "vmi created"),
			Pod: rapid.StringMatching("[a-zA-Z0-9-]{0,64}").Draw(t, "pod"), Holdable: rapid.Bool().Draw(t, "holdable"), Moving: rapid.Bool().Draw(t, "moving"),
			Launcher: grace.Holder{PID: rapid.IntMin(0).Draw(t, "shim"), Start: rapid.Uint64().Draw(t, "shim start"), File: rapid.Uint64().Draw(t, "file"),
				Device: rapid.Uint64().Draw(t, "device"), Pod: rapid.StringMatching("[a-zA-Z0-9-]{0,64}").Draw(t, "shim's pod")},
		}
		if rapid.Bool().Draw(t, "held") {
			want.Hold = grace.Hold{
				Reason: grace.Cause(text.Draw(t, "reason")), Start: mono.Draw(t, "held since"), Until: mono.Draw(t, "held until"),
				StartedAt: wall.Draw(t, "held since, for people"), UntilAt: wall.Draw(t, "held until, for people"), Leaving: rapid.Bool().Draw(t, "leaving"), Moving: rapid.Bool().Draw(t, "moving"),
			}
		}
		if rapid.Bool().Draw(t, "shutting down") {
			want.Shutdown = grace.Shutdown{
				Cause: grace.Cause(rapid.StringN(1, 20, -1).Draw(t, "cause")),
				Start: mono.Draw(t, "start"), Deadline: mono.Draw(t, "deadline"),
				StartedAt: wall.Draw(t, "started at"), DeadlineAt: wall.Draw(t, "deadline at"),
				DryRun: rapid.Bool().Draw(t, "dry"), Requested: rapid.Bool().Draw(t, "requested"), Signalled: rapid.Bool().Draw(t, "signalled"),
				Over: grace.Over(text.Draw(t, "over")),
			}
		}
		data, err := encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("(-want +got):\n%s", cmp.Diff(want, got))
		}
	})
}

// A field that somebody adds to grace.Record must be stored too.
func TestEveryFieldOfARecordIsStored(t *testing.T) {
	want := shutdownRecord()
	want.Shutdown.DryRun, want.Shutdown.Signalled, want.Shutdown.Over = true, true, grace.Exiting
	want.VMICreated, want.Pod, want.Holdable = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), "a-pod", true
	want.Moving = true
	want.Launcher.Device, want.Launcher.Pod = 41, "a-pod"
	want.Hold = heldRecord().Hold
	want.Hold.Moving = true
	var visit func(v reflect.Value, path string)
	visit = func(v reflect.Value, path string) {
		if v.IsZero() {
			t.Errorf("%s is not set by this test: is it stored?", path)
		}
		if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			visit(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	}
	visit(reflect.ValueOf(want), "Record")
	got, err := decode(encoded(t, want))
	if err != nil {
		t.Fatal(err)
	}
	wantRecords(t, []grace.Record{got}, want)
}

func TestChecksumIsOverTheBytesInTheFile(t *testing.T) {
	data := encoded(t, runningRecord())
	var env envelope
	if err := json.Unmarshal(data, &env); err != nil {
		t.Fatal(err)
	}
	// given: the same record laid out otherwise, with a field of another agent
	raw := append([]byte(`{"new": {"a" :1},  `), bytes.TrimPrefix(env.Record, []byte("{"))...)
	if got, err := decode(seal(raw)); err != nil {
		t.Error(err)
	} else {
		wantRecords(t, []grace.Record{got}, runningRecord())
	}
	// and: one space that means nothing to JSON
	if _, err := decode(bytes.Replace(data, []byte(`"uid": `), []byte(`"uid":  `), 1)); err == nil {
		t.Error("a changed byte in the record went unnoticed")
	}
}

func TestDamageIsAlwaysNoticed(t *testing.T) {
	whole := encoded(t, shutdownRecord())
	for i := range whole {
		if _, err := decode(whole[:i]); err == nil && strings.TrimSpace(string(whole[i:])) != "" {
			t.Errorf("cut to %d bytes: no error", i)
		}
		torn := append(bytes.Clone(whole[:i]), make([]byte, len(whole)-i)...)
		if _, err := decode(torn); err == nil {
			t.Errorf("zeros from byte %d on: no error", i)
		}
		for _, flip := range []byte{0x01, 0x20, 0x80} {
			bad := bytes.Clone(whole)
			bad[i] ^= flip
			if got, err := decode(bad); err == nil && got != shutdownRecord() {
				t.Errorf("byte %d changed to %q: another record without an error", i, bad[i])
			}
		}
	}
}

// A missing or absurd value must not be read as 0, nor as "running".
func TestRecordThatCannotBeMeantIsRefused(t *testing.T) {
	shutdown := `,"shutdown":{"cause":"VMIDeleted","startMonotonicNanoseconds":5,"deadlineMonotonicNanoseconds":9,"startedAt":"2026-03-01T12:30:15.250Z","deadlineAt":"2026-03-01T12:30:15.250Z"}}`
	whole := `{"namespace":"a","name":"b","gracePeriod":{"length":"30s","source":"vmi"},"instance":{"uuid":"u","pid":1}` + shutdown
	if _, err := decode(seal([]byte(whole))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, reason string }{
		{`"length":"30s",`, ``, "no grace period"},
		{`"length":"30s"`, `"length":null`, "no grace period"},
		{`"length":"30s"`, `"length":""`, "grace period"},
		{`"length":"30s"`, `"length":30`, "does not decode"},
		{`"30s"`, `"-30s"`, "grace period -30s"},
		{`"30s"`, `"900000h"`, "grace period 900000h"},
		{`"30s"`, `"30 parsecs"`, "grace period"},
		{`"cause":"VMIDeleted",`, ``, "no cause"},
		{`"cause":"VMIDeleted"`, `"cause":""`, "no cause"},
		{`"startMonotonicNanoseconds":5,`, ``, "start"},
		{`"deadlineMonotonicNanoseconds":9,`, ``, "deadline"},
		{`"deadlineMonotonicNanoseconds":9,`, `"deadlineMonotonicNanoseconds":9.5,`, "does not decode"},
		{`"deadlineMonotonicNanoseconds":9,`, `"deadlineMonotonicNanoseconds":9223372036854775808,`, "does not decode"},
		{`"startedAt":"2026-03-01T12:30:15.250Z",`, ``, "startedAt"},
		{`"deadlineAt":"2026-03-01T12:30:15.250Z"`, `"deadlineAt":"soon"`, "deadlineAt"},
		{`"namespace":"a"`, `"namespace":"../a"`, "not a VM's name"},
		{`"namespace":"a"`, `"namespace":""`, "not a VM's name"},
		{`"name":"b"`, `"name":"b/c"`, "not a VM's name"},
		{`"name":"b"`, `"name":"b_c"`, "not a VM's name"},
		{`"pid":1`, `"pid":-1`, "negative"},
		{whole, `null`, "no grace period"},
		{whole, `[]`, "does not decode"},
	} {
		raw := strings.Replace(whole, c.old, c.new, 1)
		if got, err := decode(seal([]byte(raw))); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s instead of %s: error %v, want one with %q", c.new, c.old, err, c.reason)
		} else if got != (grace.Record{}) {
			t.Errorf("%s instead of %s: a record comes with the error", c.new, c.old)
		}
	}
}

func TestEnvelopeThatCannotBeMeantIsRefused(t *testing.T) {
	whole := string(encoded(t, runningRecord()))
	for _, c := range []struct{ old, new, reason string }{
		{`"version": 1`, `"version": 2`, "newer agent: version 2"},
		{`"version": 1`, `"version": 0`, "version: 0"},
		{`"version": 1,`, ``, "version: 0"},
		{`"version": 1`, `"version": "1"`, "torn or not a record"},
		{`"version": 1`, `"version": -1`, "version: -1"},
		{`sha256:`, `sha512:`, "wrong checksum"},
		{`"record":`, `"data":`, "wrong checksum"},
		{whole, `{"version": 9, "checksum": 5, "vm": 1}`, "newer agent: version 9"},
		{whole, whole + whole, "torn or not a record"},
		{whole, whole + "\x00", "torn or not a record"},
		{whole, ``, "empty"},
		{whole, strings.Repeat("\x00", 700), "zero bytes"},
		{whole, whole + strings.Repeat(" ", maxSize), "more than 65536 bytes"},
	} {
		bad := strings.Replace(whole, c.old, c.new, 1)
		if _, err := decode([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%.40q instead of %.40q: error %v, want one with %q", c.new, c.old, err, c.reason)
		}
	}
}

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDefaultsAreTheContracts(t *testing.T) {
	t.Setenv("NODE_NAME", "node-a")
	o, err := Parse([]string{"--standalone"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := &Options{
		NodeName: "node-a", Standalone: true, LaunchersDir: "/var/run/vmgrace/launchers", KubeletDir: "/var/lib/kubelet",
		StateDir: "/var/lib/vmgrace", LibvirtURI: "qemu:///system", DefaultGracePeriod: 30 * time.Second,
		RetryInterval: 5 * time.Second, ShutdownMode: "auto", AgentTimeout: 5 * time.Second, DBusSocket: "/run/dbus/system_bus_socket", DestroyTimeout: 10 * time.Second,
		MetricsAddress: "127.0.0.1:9469", LogFormat: "text",
		Migration: MigrationOptions{CANamespace: "vmgrace-system", AllowPaths: defaultPaths()},
	}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(Options{}, MigrationOptions{}, migrate.URITemplate{})); diff != "" {
		t.Error(diff)
	}
}

func TestWrongUsageIsOneLineThatSaysWhatToDo(t *testing.T) {
	for _, args := range [][]string{
		{"--standalone", "--no-such-flag"},
		{"--beside-kubevirt", "--standalone"},
		{"--beside-kubevirt", "--libvirt-uri="},
		{"--beside-kubevirt", "--dry-run", "--destroy-timeout=1s"},
		{"--beside-kubevirt", "--migration-listen=:9470"},
		{"--standalone", "extra"},
		{"--standalone", "--default-grace-period=-1s"},
		{"--standalone", "--default-grace-period=soon"},
		{"--standalone", "--shutdown-retry-interval=0s"},
		{"--standalone", "--destroy-timeout=-1s"},
		{"--standalone", "--migration-listen=9470"},
		{"--standalone", "--migration-listen=:9470", "--migration-allow-paths=images"},
		{"--standalone", "--migration-listen=:9470", "--migration-allow-paths=/"},
		{"--standalone", "--migration-listen=:9470", "--migration-allow-firmware=OVMF"},
		{"--standalone", "--migration-listen=:9470", "--migration-allow-paths=a", "--migration-allow-firmware=b"},
		{"--standalone", "--migration-listen=:9470", "--migration-uri=qemu+tls://node-b/system"},
		{"--standalone", "--migration-listen=:9470", "--migration-uri=qemu+ext://{{address}}/system?command=sh"},
		{"--standalone", "--migration-uri=qemu+tls://{{address}}/system"},
		{"--standalone", "--shutdown-mode=magic"},
		{"--standalone", "--log-format=xml"},
		{"--standalone", "--state-dir="},
	} {
		_, err := Parse(args, io.Discard)
		var usage *UsageError
		if !errors.As(err, &usage) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "--help") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// given writes a cache with one VM at rest and one in its grace period.
func given(t *testing.T, start grace.Mono) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	store, _, err := gracecache.Take(durable.Real(), dir)
	if err == nil {
		err = store.MakeWritable()
	}
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	r := grace.Record{Namespace: "ns", Name: "a", UID: "u1", BootID: boot,
		Period: grace.Period{Length: 1500 * time.Millisecond, Source: grace.SourceDefault}, Instance: grace.Instance{UUID: "x", PID: 1, Start: 2}}
	ending := r
	ending.Name, ending.UID, ending.Period = "b", "u2", grace.Period{Length: time.Minute, Source: grace.SourceLauncher}
	wall := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	ending.Shutdown = grace.Shutdown{
		Cause: grace.LauncherSignal, Start: start, Deadline: start.Add(time.Minute), StartedAt: wall, DeadlineAt: wall.Add(time.Minute),
	}
	for _, rec := range []grace.Record{r, ending} {
		if err := store.Put(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func status(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Status(args, &out, os.Stderr); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStatusHasExactlyThePromisedKeys(t *testing.T) {
	dir := given(t, clock{}.Now())
	var vms []map[string]any
	if err := json.Unmarshal([]byte(status(t, "--state-dir", dir, "-o", "json")), &vms); err != nil {
		t.Fatal(err)
	}
	remaining, _ := vms[1]["remainingSeconds"].(float64)
	if remaining <= 50 || remaining > 60 {
		t.Errorf("remainingSeconds %v", remaining)
	}
	delete(vms[1], "remainingSeconds")
	want := []map[string]any{
		{"namespace": "ns", "name": "a", "uid": "u1", "domain": "ns_a", "gracePeriodSeconds": 2.0, "phase": "Running"},
		{"namespace": "ns", "name": "b", "uid": "u2", "domain": "ns_b", "gracePeriodSeconds": 60.0, "phase": "ShuttingDown",
			"cause": "LauncherSignal", "startedAt": "2026-01-02T03:04:05.678Z", "deadline": "2026-01-02T03:05:05.678Z"},
	}
	if diff := cmp.Diff(want, vms); diff != "" {
		t.Error(diff)
	}
}

func TestStatusOfAHeldShutdownNamesItsReasonAndLatestMoment(t *testing.T) {
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := clock{}.Now()
	r := &grace.Record{Namespace: "ns", Name: "a", Hold: grace.Hold{
		Reason: grace.DeletionByTaintManager, Start: now.Add(-time.Minute), Until: now.Add(time.Minute), StartedAt: wall, UntilAt: wall.Add(2 * time.Minute),
	}}
	s := statusOf(r, now)
	if s.Phase != grace.Held || s.Cause != grace.DeletionByTaintManager || s.StartedAt != "2026-01-02T03:04:05.000Z" ||
		s.Deadline != "2026-01-02T03:06:05.000Z" || s.RemainingSeconds == nil || *s.RemainingSeconds != 60 {
		t.Errorf("%+v", s)
	}
}

func TestStatusPastTheDeadlineIsDestroyingWithNothingRemaining(t *testing.T) {
	dir := given(t, clock{}.Now().Add(-time.Hour))
	var vms []vmStatus
	if err := json.Unmarshal([]byte(status(t, "--state-dir="+dir, "-ojson")), &vms); err != nil {
		t.Fatal(err)
	}
	if v := vms[1]; v.Phase != grace.Destroying || v.RemainingSeconds == nil || *v.RemainingSeconds != 0 {
		t.Errorf("%+v", v)
	}
}

func TestStatusOfAnEmptyCache(t *testing.T) {
	dir := t.TempDir()
	if got := status(t, "--state-dir", dir, "-o", "json"); strings.TrimSpace(got) != "[]" {
		t.Errorf("JSON: %q", got)
	}
	if got := status(t, "--state-dir", dir); got != "no VMs\n" {
		t.Errorf("table: %q", got)
	}
}

func TestStatusTableIsForPeople(t *testing.T) {
	got := status(t, "--state-dir", given(t, clock{}.Now()))
	rows := strings.Split(strings.TrimSpace(got), "\n")
	if len(rows) != 3 || !strings.HasPrefix(rows[0], "NAMESPACE") || !strings.Contains(rows[2], "ShuttingDown") || !strings.Contains(rows[1], "2s") {
		t.Errorf("\n%s", got)
	}
}

func TestStatusErrors(t *testing.T) {
	var usage *UsageError
	if err := Status([]string{"--state-dir=/no/such/dir"}, io.Discard, io.Discard); err == nil || errors.As(err, &usage) {
		t.Errorf("missing directory: %v", err)
	}
	for _, args := range [][]string{{"-o", "yaml"}, {"--nonsense"}, {"extra"}} {
		if err := Status(args, io.Discard, io.Discard); !errors.As(err, &usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

package signals

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

var testVM = VM{Namespace: "ns", Name: "vm", UID: "u-1", Grace: "30"}

// fill writes until the file system has no block left.
func fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill: %v", err)
	}
	return filler
}

func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}

func newSender(t *testing.T, dir string) *Sender {
	t.Helper()
	s := NewSender(dir, testVM)
	t.Cleanup(func() {
		if err := s.Withdraw(); err != nil {
			t.Errorf("withdraw: %v", err)
		}
	})
	return s
}

func send(t *testing.T, s *Sender) {
	t.Helper()
	if sent, err := s.Send("SIGTERM", noon); !sent || err != nil {
		t.Fatalf("Send: %v, %v", sent, err)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	kit.Must(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func wantTrigger(t *testing.T, dir string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, FileTrigger))
	kit.Must(t, err)
	want := Trigger{UID: "u-1", Signal: "SIGTERM", Time: noon}.Encode()
	if TriggerUID(content) != "u-1" || strings.TrimSpace(string(content)) != strings.TrimSpace(string(want)) {
		t.Errorf("the trigger says %q", content)
	}
}

func TestRegistrationAndTriggerAreReadByTheOtherEnd(t *testing.T) {
	dir := t.TempDir()
	s := newSender(t, dir)
	old := unix.Umask(0o077)
	err := s.Register()
	unix.Umask(old)
	kit.Must(t, err)
	content, err := os.ReadFile(filepath.Join(dir, FileVM))
	kit.Must(t, err)
	if vm, err := ParseVM(content); err != nil || vm != testVM {
		t.Errorf("vm.json says %q: %v", content, err)
	}
	if info, err := os.Stat(filepath.Join(dir, FileVM)); err != nil || info.Mode() != 0o644 {
		t.Errorf("vm.json has mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(dir, FileTrigger)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a trigger without a signal: %v", err)
	}
	send(t, s)
	wantTrigger(t, dir)
}

func TestAStaleTriggerIsClearedAndOurOwnIsNot(t *testing.T) {
	dir := t.TempDir()
	kit.Must(t, os.WriteFile(filepath.Join(dir, FileTrigger), nil, 0o600))
	kit.Must(t, os.WriteFile(filepath.Join(dir, FileTakenTrigger), nil, 0o600)) // an agent died over it
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	for _, name := range []string{FileTrigger, FileTakenTrigger} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the stale %s: %v", name, err)
		}
	}
	// The shim leaves a person's trigger after its start alone.
	kit.Must(t, os.WriteFile(filepath.Join(dir, FileTrigger), nil, 0o600))
	kit.Must(t, s.Register())
	if _, err := os.Stat(filepath.Join(dir, FileTrigger)); err != nil {
		t.Errorf("touch shutdown: %v", err)
	}
	send(t, s)
	kit.Must(t, s.Register())
	wantTrigger(t, dir)
}

func TestATriggerIsWrittenOnce(t *testing.T) {
	dir := t.TempDir()
	s := newSender(t, dir)
	send(t, s)
	kit.Must(t, os.Remove(filepath.Join(dir, FileTrigger))) // as the agent does after Stopped
	send(t, s)
	if _, err := os.Stat(filepath.Join(dir, FileTrigger)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the trigger came back: %v", err)
	}
}

func TestALateDirectoryIsClearedRegisteredAndTriggeredInThisOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "late")
	s := newSender(t, dir)
	if sent, err := s.Send("SIGTERM", noon); sent || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Send: %v, %v", sent, err)
	}
	kit.Must(t, os.Mkdir(dir, 0o755))
	kit.Must(t, os.WriteFile(filepath.Join(dir, FileTrigger), []byte("old"), 0o600))
	send(t, s)
	wantTrigger(t, dir)
	if got := names(t, dir); got != "shutdown vm.json" {
		t.Errorf("there is %s", got)
	}
}

func TestARecreatedDirectoryIsRegisteredAnewWithTheTrigger(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	kit.Must(t, os.Mkdir(dir, 0o755))
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	kit.Must(t, os.Rename(dir, dir+".away"))
	kit.Must(t, os.Mkdir(dir, 0o755))
	send(t, s)
	wantTrigger(t, dir)
	if got := names(t, dir); got != "shutdown vm.json" {
		t.Errorf("there is %s", got)
	}
	if got := names(t, dir+".away"); got != "" {
		t.Errorf("the old directory looks like a killed launcher: %s", got)
	}
}

func TestAMissingDirectoryDoesNotCostTheLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	kit.Must(t, os.Mkdir(dir, 0o755))
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	lock := s.lock
	kit.Must(t, os.Rename(dir, dir+".away"))
	if err := s.Register(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Register: %v", err)
	}
	kit.Must(t, os.Rename(dir+".away", dir))
	kit.Must(t, s.Register())
	if s.lock != lock {
		t.Error("vm.json was given up while it could still be seen")
	}
}

func TestALostVMFileIsRenewedAndASuccessorsStays(t *testing.T) {
	dir := t.TempDir()
	vmFile := filepath.Join(dir, FileVM)
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	kit.Must(t, os.Remove(vmFile))
	kit.Must(t, s.Register())
	if _, err := os.Stat(vmFile); err != nil {
		t.Fatalf("a lost vm.json: %v", err)
	}
	successor := VM{Namespace: "ns", Name: "vm", UID: "u-2"}.Encode()
	kit.Must(t, os.WriteFile(vmFile+".x", successor, 0o644))
	kit.Must(t, os.Rename(vmFile+".x", vmFile))
	send(t, s)
	kit.Must(t, s.Withdraw())
	if got, err := os.ReadFile(vmFile); err != nil || string(got) != string(successor) {
		t.Errorf("the successor's vm.json: %q, %v", got, err)
	}
}

func TestWhatATenantPutsInTheWayIsReplacedNotFollowed(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	kit.Must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	for _, name := range []string{FileVM, tempVM, tempTrigger, FileTrigger} {
		kit.Must(t, os.Symlink(victim, filepath.Join(dir, name)))
	}
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	kit.Must(t, os.Remove(filepath.Join(dir, tempTrigger)))
	kit.Must(t, os.Symlink(victim, filepath.Join(dir, tempTrigger)))
	send(t, s)
	wantTrigger(t, dir)
	if info, err := os.Lstat(filepath.Join(dir, FileTrigger)); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the trigger is %v, %v", info.Mode(), err)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
		t.Errorf("the link's target: %q, %v", got, err)
	}
}

func TestOnlyStoppedForOurUIDCounts(t *testing.T) {
	dir := t.TempDir()
	s := newSender(t, dir)
	status := func(content []byte) bool {
		t.Helper()
		kit.Must(t, os.WriteFile(filepath.Join(dir, FileStatus), content, 0o600))
		end, err := s.Ended()
		kit.Must(t, err)
		return end.Stopped
	}
	if end, err := s.Ended(); end != (End{}) || err != nil {
		t.Errorf("without a directory: %v, %v", end, err)
	}
	kit.Must(t, s.Register())
	if end, err := s.Ended(); end != (End{}) || err != nil {
		t.Errorf("without a status: %v, %v", end, err)
	}
	if !status(EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped, Outcome: grace.Forced, Message: "{"})) {
		t.Error("Stopped for our uid was not seen")
	}
	for _, c := range []string{
		string(EncodeStatus(grace.Status{UID: "u-2", Phase: grace.Stopped})), string(EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Destroying})),
		`{"version":1,"x":{"uid":"u-1","phase":"Stopped"}}`, `["uid","u-1","phase","Stopped"]`, `{"uid":"u-1","phase":"Stopped"`, `"`, ``, `{"\`,
		`{"message":"\"uid\":\"u-1\",\"phase\":\"Stopped\"","uid":"u-2","phase":"Stopped"}`,
	} {
		if status([]byte(c)) {
			t.Errorf("%s was taken for the end of u-1", c)
		}
	}
}

func TestATriggerThatTheAgentHasNotSeenOutlivesItsLauncher(t *testing.T) {
	ours := Trigger{UID: "u-1", Signal: "SIGTERM", Time: noon}.Encode()
	told := func(uid string, phase grace.Phase) []byte { return EncodeStatus(grace.Status{UID: uid, Phase: phase}) }
	for name, c := range map[string]struct {
		trigger []byte
		status  []byte
		later   bool // than the trigger
		stays   bool
	}{
		"nothing was told":               {trigger: ours, stays: true},
		"a VM runs":                      {trigger: ours, status: told("u-1", grace.Running), later: true, stays: true},
		"an end was told before":         {trigger: ours, status: told("u-1", grace.Stopped), stays: true},
		"another VM's end":               {trigger: ours, status: told("u-2", grace.Stopped), later: true, stays: true},
		"nothing that can be understood": {trigger: ours, status: []byte("{"), later: true, stays: true},
		"a shutdown has begun":           {trigger: ours, status: told("u-1", grace.ShuttingDown), later: true},
		"an end was told since":          {trigger: ours, status: told("u-1", grace.Stopped), later: true},
		"the trigger of another VM":      {trigger: Trigger{UID: "u-2"}.Encode()},
		"the trigger of nobody":          {trigger: nil},
		"a trigger that is no JSON":      {trigger: []byte("u-1")},
	} {
		dir := t.TempDir()
		kit.Must(t, os.WriteFile(filepath.Join(dir, FileTrigger), c.trigger, 0o600))
		kit.Must(t, os.Chtimes(filepath.Join(dir, FileTrigger), noon, noon))
		if c.status != nil {
			at := noon.Add(-time.Second)
			if c.later {
				at = noon.Add(time.Second)
			}
			kit.Must(t, os.WriteFile(filepath.Join(dir, FileStatus), c.status, 0o600))
			kit.Must(t, os.Chtimes(filepath.Join(dir, FileStatus), at, at))
		}
		s := newSender(t, dir)
		kit.Must(t, s.Register())
		if _, err := os.Stat(filepath.Join(dir, FileTrigger)); (err == nil) != c.stays {
			t.Errorf("%s: stat says %v, want it to stay: %v", name, err, c.stays)
		}
	}
}

func TestAnEndThatAnEarlierLauncherWasToldIsNone(t *testing.T) {
	dir := t.TempDir()
	tell := func(s grace.Status) {
		t.Helper()
		path := filepath.Join(dir, FileStatus)
		kit.Must(t, os.WriteFile(path+".x", EncodeStatus(s), 0o600))
		kit.Must(t, os.Rename(path+".x", path))
	}
	for name, end := range map[string]grace.Status{
		"with its time":    {UID: "u-1", Phase: grace.Stopped, Outcome: grace.Forced, EndedAt: noon},
		"without its time": {UID: "u-1", Phase: grace.Stopped},
		"moved":            {UID: "u-1", Phase: grace.Stopped, Outcome: grace.Migrated, EndedAt: noon},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: an end that was reported before this launcher started.
			tell(end)
			s := newSender(t, dir)
			kit.Must(t, s.Register())
			send(t, s)
			was, err := s.Ended()
			kit.Must(t, err)
			if was != (End{}) {
				t.Error("the end of an earlier VM is taken for this one's")
			}
			if former, err := s.Former(); former.Outcome != end.Outcome || !former.Stopped || err != nil {
				t.Errorf("the end of the earlier VM: %+v, %v", former, err)
			}
			// When: its own end is reported.
			end.EndedAt = end.EndedAt.Add(time.Minute)
			tell(end)
			if is, err := s.Ended(); !is.Stopped || is.Outcome != end.Outcome || err != nil {
				t.Errorf("its own end: %+v, %v", is, err)
			}
		})
	}
}

func TestAStatusThatIsNoFileOfTheAgentDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	path := filepath.Join(dir, FileStatus)
	for name, put := range map[string]func() error{
		"FIFO":      func() error { return unix.Mkfifo(path, 0o600) },
		"directory": func() error { return os.Mkdir(path, 0o700) },
		"link inside": func() error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "s"), EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped}), 0o600), os.Symlink("s", path))
		},
		"too large": func() error {
			return os.WriteFile(path, append(EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped}), make([]byte, MaxSize)...), 0o600)
		},
	} {
		kit.Must(t, put())
		done := make(chan error, 1)
		go func() { end, err := s.Ended(); done <- map[bool]error{false: err, true: nil}[end.Stopped] }()
		select {
		case err := <-done:
			if !errors.Is(err, ErrNotRegular) && !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: blocked", name)
		}
		kit.Must(t, os.Remove(path))
	}
}

package gracecache

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestTheHolderOfALockIsFound(t *testing.T) {
	dir := t.TempDir()
	openStore(t, dir)
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid := heldBy(f, "/proc"); pid != os.Getpid() {
		t.Errorf("held by %d, want %d", pid, os.Getpid())
	}
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if pid := heldBy(other, "/proc"); pid != 0 {
		t.Errorf("a file that nobody has locked is held by %d", pid)
	}
}

func TestAProcessEndsWhereAThreadIsKilledAndStays(t *testing.T) {
	const status = "Name:\tnode-agent\nState:\t%s\nSigQ:\t1/63\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t0000000000000000\n"
	const kill, term = 1 << 8, 1 << 14
	for name, c := range map[string]struct {
		threads []string
		want    bool
	}{
		"runs":                         {threads: []string{fmt.Sprintf(status, "S (sleeping)", 0, 0), fmt.Sprintf(status, "D (disk sleep)", 0, 0)}},
		"was asked to end":             {threads: []string{fmt.Sprintf(status, "D (disk sleep)", 0, term)}},
		"was killed, one thread hangs": {threads: []string{fmt.Sprintf(status, "Z (zombie)", 0, 0), fmt.Sprintf(status, "D (disk sleep)", kill, 0)}, want: true},
		"was killed a moment ago":      {threads: []string{fmt.Sprintf(status, "D (disk sleep)", 0, kill)}, want: true},
		"cannot be read":               {threads: []string{"SigPnd:\tx\n"}},
		"is not there":                 {},
	} {
		proc := t.TempDir()
		for i, text := range c.threads {
			task := filepath.Join(proc, "7", "task", fmt.Sprint(7+i))
			if err := os.MkdirAll(task, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, task, "status", []byte(text))
		}
		if got := isEnding(7, proc); got != c.want {
			t.Errorf("a process that %s: %v, want %v", name, got, c.want)
		}
	}
	if isEnding(os.Getpid(), "/proc") {
		t.Error("this process ends")
	}
}

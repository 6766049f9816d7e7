package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Launcher is a launcher directory of an Agent and the identity of its VM.
type Launcher struct {
	Dir                  string
	Namespace, Name, UID string
	// Env is added to the environment of its shims.
	Env []string

	node *Node
}

// Status is the content of status.json.
type Status struct {
	Version   int    `json:"version"`
	UID       string `json:"uid"`
	Phase     string `json:"phase"`
	Cause     string `json:"cause"`
	StartedAt string `json:"startedAt"`
	Deadline  string `json:"deadline"`
	Outcome   string `json:"outcome"`
	EndedAt   string `json:"endedAt"`
	Message   string `json:"message"`
}

// Launcher makes the launcher directory of a guest.
func (a *Agent) Launcher(t T, g *Guest) *Launcher {
	t.Helper()
	return a.LauncherFor(t, g.Namespace, g.Name, g.UID)
}

// LauncherFor makes a launcher directory for a VM that may not run yet.
func (a *Agent) LauncherFor(t T, namespace, name, uid string) *Launcher {
	t.Helper()
	dir := filepath.Join(a.LaunchersDir, namespace+"_"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("launcher directory: %v", err)
	}
	return &Launcher{Dir: dir, Namespace: namespace, Name: name, UID: uid, node: a.node}
}

// PodLauncher makes the launcher directory of a launcher pod at the path that kubelet uses.
func (a *Agent) PodLauncher(t T, namespace, name, uid, pod string) *Launcher {
	t.Helper()
	dir := filepath.Join(a.KubeletDir, "pods", pod, "volumes", "kubernetes.io~empty-dir", "vmgrace")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("launcher directory: %v", err)
	}
	return &Launcher{Dir: dir, Namespace: namespace, Name: name, UID: uid, node: a.node}
}

// Path returns the path of a file in the directory: "vm.json", "shutdown" or "status.json".
func (l *Launcher) Path(name string) string { return filepath.Join(l.Dir, name) }

// Has reports whether a file exists.
func (l *Launcher) Has(name string) bool {
	_, err := os.Lstat(l.Path(name))
	return err == nil
}

// Says reports whether a file contains a text.
func (l *Launcher) Says(name, text string) bool {
	return strings.Contains(readText(l.Path(name)), text)
}

// Touch makes an empty trigger, as a person does with touch.
func (l *Launcher) Touch(t T) {
	t.Helper()
	l.Write(t, "shutdown", "")
}

// Write makes or replaces a file by rename.
func (l *Launcher) Write(t T, name, content string) {
	t.Helper()
	tmp := l.Path("." + name + ".test")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
	if err := os.Rename(tmp, l.Path(name)); err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
}

// Status reads status.json. It returns the zero Status while there is none.
func (l *Launcher) Status() Status {
	var s Status
	if err := json.Unmarshal([]byte(readText(l.Path("status.json"))), &s); err != nil {
		return Status{}
	}
	return s
}

// WaitStopped waits for the phase Stopped and returns the status.
func (l *Launcher) WaitStopped(t T, within time.Duration) Status {
	t.Helper()
	Eventually(t, within, func() bool { return l.Status().Phase == "Stopped" }, "%s is Stopped", l.Dir)
	return l.Status()
}

// Shim starts a launcher-shim for this launcher's VM and does not wait. args come after the
// flags that identify the VM.
func (l *Launcher) Shim(t T, args ...string) *Process {
	t.Helper()
	return l.shim(t, nil, args)
}

func (l *Launcher) shim(t T, wrapper, args []string) *Process {
	t.Helper()
	argv := append(wrapper, Binary(t, "launcher-shim"),
		"--namespace", l.Namespace, "--name", l.Name, "--uid", l.UID, "--launcher-dir", l.Dir)
	cmd := l.node.Command(argv[0], append(argv[1:], args...)...)
	cmd.Env = append(append(cmd.Env, goRace), l.Env...)
	if wrapper != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	log, err := os.CreateTemp(l.node.Dir, "shim-*.log")
	if err != nil {
		t.Fatalf("shim's log: %v", err)
	}
	log.Close()
	p, err := StartProcess(cmd, log.Name())
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("launcher-shim of %s said:\n%s", l.Name, p.Log())
		}
		p.wantNoRace(t)
	})
	return p
}

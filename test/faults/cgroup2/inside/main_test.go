//go:build guest

// Package inside has the tests of package cgroup2 that run in its guest.
package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const root = "/sys/fs/cgroup"

// Of the environment of a program that becomes a container: its cgroup, and whether it gets a cgroup namespace of
// its own, as runtimes give containers without privilege.
const (
	inCgroup   = "IN_CGROUP"
	ownCgroups = "OWN_CGROUPS"
)

func TestMain(m *testing.M) {
	if cgroup := os.Getenv(inCgroup); cgroup != "" {
		fmt.Fprintln(os.Stderr, become(cgroup))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// become does what a runtime does before it starts a container's program, and starts that.
func become(cgroup string) error {
	runtime.LockOSThread()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	if os.Getenv(ownCgroups) != "" {
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("cgroup namespace: %w", err)
		}
	}
	if os.Getpid() == 1 {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("/proc: %w", err)
		}
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// container makes a cgroup, with controllers on each level as kubelet has them, and returns its path.
func container(t *testing.T, name string) string {
	t.Helper()
	dir := root
	for level := range strings.SplitSeq(name, "/") {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(dir, level)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

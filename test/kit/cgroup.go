package kit

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CgroupRoot returns the directory of the root cgroup: with cgroups of version 1 that of pids.
func CgroupRoot() string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		return filepath.Join(root, "pids")
	}
	return root
}

// Cgroup makes a cgroup below one of this process's own and returns its path. It is removed with the test,
// once its processes have ended.
func Cgroup(t T, name string) string {
	t.Helper()
	root := CgroupRoot()
	path := filepath.Join(root, "vmgrace-test-"+strconv.Itoa(os.Getpid()), name)
	Must(t, os.MkdirAll(path, 0o755))
	t.Cleanup(func() {
		for dir := path; dir != root && !hasDirs(dir); dir = filepath.Dir(dir) { // another cgroup of the test may be in it
			Eventually(t, "the processes of "+dir+" have ended", func() bool { err := os.Remove(dir); return err == nil || os.IsNotExist(err) })
		}
	})
	return path
}

func hasDirs(dir string) bool {
	entries, _ := os.ReadDir(dir) // one that is gone has none
	for _, e := range entries {
		if e.IsDir() {
			return true
		}
	}
	return false
}

// PodCgroups returns the cgroup of a container of a burstable pod with each of kubelet's drivers, by the
// driver's name, and with CRI-O, which makes one more below it.
func PodCgroups(pod, container string) map[string]string {
	slice := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice/"
	return map[string]string{
		"systemd":  slice + "cri-containerd-" + container + ".scope",
		"cgroupfs": "kubepods/burstable/pod" + pod + "/" + container,
		"CRI-O":    slice + "crio-" + container + ".scope/container",
	}
}

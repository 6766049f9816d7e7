package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// controllers returns the cgroup controllers without which no container starts.
func controllers() []string { return []string{"cpu", "cpuset", "memory", "pids"} }

// makeCgroup makes the cgroup <cluster>/<node> for the pods of a node, under cgroup v2 or
// in every hierarchy of v1.
func makeCgroup(cluster, node string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &fs); err != nil {
		return fmt.Errorf("this machine has no cgroups: %s: %w", cgroupRoot, err)
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return makeCgroupV2(cluster, node)
	}
	return makeCgroupsV1(cluster, node)
}

func makeCgroupV2(cluster, node string) error {
	have := strings.Fields(readText(filepath.Join(cgroupRoot, "cgroup.controllers")))
	dir := cgroupRoot
	for _, below := range []string{cluster, node, ""} {
		for _, c := range controllers() {
			if !slices.Contains(have, c) {
				return fmt.Errorf("this machine has no cgroup controller %s", c)
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o600); err != nil {
				return fmt.Errorf("this machine delegates no cgroup controller %s: %w", c, err)
			}
		}
		dir = filepath.Join(dir, below)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("this machine lets root make no cgroup: %w", err)
		}
	}
	return nil
}

func makeCgroupsV1(cluster, node string) error {
	for _, c := range append([]string{"devices", "freezer"}, controllers()...) {
		if _, err := os.Stat(filepath.Join(cgroupRoot, c, "cgroup.procs")); err != nil {
			return fmt.Errorf("this machine has no cgroup controller %s: %w", c, err)
		}
	}
	hierarchies, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	for _, procs := range hierarchies {
		dir := filepath.Dir(procs)
		for _, below := range []string{cluster, node} {
			parent := dir
			dir = filepath.Join(dir, below)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("this machine lets root make no cgroup: %w", err)
			}
			if err := inheritCPUs(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// inheritCPUs sets a new cpuset of cgroup v1 to that of its parent. A new cpuset is empty
// and therefore takes no process.
func inheritCPUs(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value := readText(filepath.Join(parent, name))
		if value == "" {
			continue // this is not the hierarchy of cpusets
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			return fmt.Errorf("cpuset: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the cgroups of one cluster, the innermost first.
func removeCgroups(cluster string) error {
	// v2 has one hierarchy, v1 has one for each controller.
	tops := []string{filepath.Join(cgroupRoot, cluster)}
	more, err := filepath.Glob(filepath.Join(cgroupRoot, "*", cluster))
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	for _, top := range append(tops, more...) {
		if err := removeCgroup(top); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

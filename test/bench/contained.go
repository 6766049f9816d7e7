package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	daemonSet  = "deploy/daemonset/daemonset.yaml"
	cgroupRoot = "/sys/fs/cgroup"
)

// share is the part of a node that the DaemonSet's container gets.
type share struct {
	milliCPU int    // its CPU request, which is its weight when cores are short
	memory   string // its limit in bytes
}

func shipped(manifest []byte) (share, error) {
	var d struct {
		Kind string
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						SecurityContext struct{ Privileged bool }
						Resources       struct{ Requests, Limits map[string]string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(manifest, &d); err != nil {
		return share{}, fmt.Errorf("%s: %w", daemonSet, err)
	}
	containers := d.Spec.Template.Spec.Containers
	if d.Kind != "DaemonSet" || len(containers) != 1 || !containers[0].SecurityContext.Privileged {
		return share{}, fmt.Errorf("%s is no DaemonSet of one privileged container", daemonSet)
	}
	cpu, milli := strings.CutSuffix(containers[0].Resources.Requests["cpu"], "m")
	m, err := strconv.Atoi(cpu)
	limit, mebi := strings.CutSuffix(containers[0].Resources.Limits["memory"], "Mi")
	l, limitErr := strconv.Atoi(limit)
	if err = errors.Join(err, limitErr); err != nil || !milli || !mebi || containers[0].Resources.Limits["cpu"] != "" {
		return share{}, fmt.Errorf("%s: CPU request in m and memory limit in Mi, no CPU limit: %v %w", daemonSet, containers[0].Resources, err)
	}
	return share{m, strconv.Itoa(l << 20)}, nil
}

// contained returns a program that starts another program with the rights of the
// DaemonSet's container. The container is privileged, so it has all of root's rights. But
// it is in a cgroup with its share of the node. A kernel with CONFIG_RT_GROUP_SCHED and
// cgroups of version 1 gives it no real-time priority there. The cgroup is removed at the
// end of the round.
func (b *bench) contained(program string) (script string) {
	b.Helper()
	manifest, err := os.ReadFile(daemonSet)
	b.must(err)
	s, err := shipped(manifest)
	b.must(err)
	var files map[string]string
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		b.must(os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+cpu +memory"), 0o600))
		shares := s.milliCPU * 1024 / 1000
		files = map[string]string{"cpu.weight": strconv.Itoa(1 + (shares-2)*9999/262142), "memory.max": s.memory}
	} else {
		files = map[string]string{"cpu/cpu.shares": strconv.Itoa(s.milliCPU * 1024 / 1000), "memory/memory.limit_in_bytes": s.memory}
	}
	name := fmt.Sprintf("vmgrace-bench-%d", unix.Getpid())
	join := ""
	for file, value := range files {
		dir := filepath.Join(cgroupRoot, filepath.Dir(file), name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			b.must(err)
		}
		b.Cleanup(func() {
			gone := func() bool { err := os.Remove(dir); return err == nil || errors.Is(err, fs.ErrNotExist) }
			node.Eventually(b, time.Minute, gone, "the cgroup %s is empty", dir)
		})
		b.must(os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(value), 0o600))
		join += "echo $$ >" + filepath.Join(dir, "cgroup.procs") + " || exit\n"
	}
	script = filepath.Join(b.temp(), "contained")
	b.must(os.WriteFile(script, []byte("#!/bin/sh\n"+join+"exec "+program+` "$@"`+"\n"), 0o700))
	return script
}

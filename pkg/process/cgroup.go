package process

import (
	"bytes"
	"strings"
)

// OfPod reports whether the text of /proc/PID/cgroup (cgroups(7)) belongs to a process of the pod,
// with each version of cgroups, each driver of kubelet's and each class of service. In no
// hierarchy may it be another pod's.
func OfPod(text []byte, pod string) bool {
	is := false
	for line := range bytes.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		mine, pods := false, false
		for _, name := range strings.Split(fields[2], "/") {
			mine = mine || names(name, pod)
			pods = pods || strings.Contains(name, "kubepods")
		}
		if pods && !mine {
			return false
		}
		is = is || mine
	}
	return is
}

// names reports whether a cgroup is the pod's. Kubelet names it pod<UID>, or with systemd
// kubepods[-<class>]-pod<UID>.slice, where "-" would be a level.
func names(cgroup, pod string) bool {
	unit, slice := strings.CutSuffix(cgroup, ".slice")
	return cgroup == "pod"+pod || slice && strings.HasSuffix(unit, "-pod"+strings.ReplaceAll(pod, "-", "_"))
}

// OfContainer reports whether the text of /proc/PID/cgroup belongs to a process of the
// container with this ID, of a pod that OfPod knows. A runtime names its cgroup ID, or with
// systemd <runtime>-ID.scope. The container may have cgroups of its own below.
func OfContainer(text []byte, id string) bool {
	for line := range bytes.Lines(text) {
		for _, name := range strings.Split(strings.TrimSuffix(string(line), "\n"), "/") {
			unit, scope := strings.CutSuffix(name, ".scope")
			if id != "" && (name == id || scope && strings.HasSuffix(unit, "-"+id)) {
				return true
			}
		}
	}
	return false
}

package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// maxVolumes bounds the volumes kept of a launcher pod.
const maxVolumes = 64

// hostname is the label of a Node that only it has.
const hostname = "kubernetes.io/hostname"

// bonds is what binds a launcher pod to this node: migratable.Launcher, comparable. Claims and
// paths are one a line.
type bonds struct{ reason, device, claims, paths string }

// with returns the bonds of this pod and of others.
func (b bonds) with(l migratable.Launcher) migratable.Launcher {
	lines := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }) }
	if l.Reason == "" {
		l.Reason = b.reason
	}
	if l.Device == "" {
		l.Device = b.device
	}
	l.Claims, l.Paths = append(l.Claims, lines(b.claims)...), append(l.Paths, lines(b.paths)...)
	return l
}

// launcherSpec is the part of a pod's spec that may bind it to a node.
type launcherSpec struct {
	NodeSelector map[string]string
	Affinity     struct {
		NodeAffinity struct {
			RequiredDuringSchedulingIgnoredDuringExecution struct{ NodeSelectorTerms []nodeTerm }
		}
	}
	ResourceClaims             []struct{ Name string }
	InitContainers, Containers []struct {
		VolumeMounts []struct {
			Name     string
			ReadOnly bool
		}
		Resources struct{ Limits map[string]json.RawMessage }
	}
	Volumes []struct {
		Name                  string
		PersistentVolumeClaim *struct{ ClaimName string }
		Ephemeral             *struct{}
		HostPath              *struct{ Path string }
	}
}

// nodeTerm is a term of a node affinity.
type nodeTerm struct {
	MatchExpressions, MatchFields []struct {
		Key, Operator string
		Values        []string
	}
}

func bondsOf(o *object) bonds {
	var spec launcherSpec
	_ = json.Unmarshal(o.Spec, &spec) // unreadable JSON counts as empty
	b := bonds{reason: spec.pinned(o), device: spec.device()}
	if b.device != "" {
		b.device = cut(fmt.Sprintf("launcher pod %s has %s", o.Name, b.device), maxCondition)
	}
	mounted := spec.mounted()
	var claims, paths []string
	for _, v := range spec.Volumes {
		writes, used := mounted[v.Name]
		switch {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil && b.reason == "":
			b.reason = cut(fmt.Sprintf("volume %s of launcher pod %s is made anew for each pod", v.Name, o.Name), maxCondition)
		case v.HostPath != nil && used && writes && !isDevice(v.HostPath.Path):
			paths = append(paths, v.HostPath.Path)
		}
	}
	if len(claims)+len(paths) > maxVolumes && b.reason == "" {
		b.reason = cut(fmt.Sprintf("launcher pod %s has more than %d volumes", o.Name, maxVolumes), maxCondition)
	}
	if b.reason == "" { // otherwise nobody asks for them
		b.claims, b.paths = strings.Join(claims, "\n"), strings.Join(paths, "\n")
	}
	return b
}

// mounted returns the volumes that containers have, and whether one may write to it.
func (s *launcherSpec) mounted() map[string]bool {
	writes := map[string]bool{}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		for _, m := range c.VolumeMounts {
			writes[m.Name] = writes[m.Name] || !m.ReadOnly
		}
	}
	return writes
}

// device returns a device of the host that the pod has, or "". KVM and network devices are none:
// each host has the same.
func (s *launcherSpec) device() string {
	for _, c := range s.ResourceClaims {
		return "resource claim " + c.Name
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			domain, device, extended := strings.Cut(name, "/")
			if extended && !strings.HasSuffix("."+domain, ".kubernetes.io") && !everywhere("/dev/"+device) {
				return "host device " + name
			}
		}
	}
	mounted := s.mounted()
	for _, v := range s.Volumes {
		if _, used := mounted[v.Name]; used && v.HostPath != nil && isDevice(v.HostPath.Path) && !everywhere(v.HostPath.Path) {
			return "host device " + v.HostPath.Path
		}
	}
	return ""
}

func isDevice(file string) bool {
	file = path.Clean(file)
	return file == "/dev" || strings.HasPrefix(file, "/dev/")
}

// everywhere reports whether a device file keeps nothing of a guest. Device plugins name /dev/net/tun
// "tun".
func everywhere(file string) bool {
	return slices.Contains([]string{"/dev/kvm", "/dev/net/tun", "/dev/tun", "/dev/vhost-net"}, path.Clean(file))
}

// pinned returns why a launcher pod must stay on this node (its controller, or its choice of
// hosts), or "".
func (s *launcherSpec) pinned(o *object) string {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind != vmis().kind {
		return cut(fmt.Sprintf("launcher pod %s is controlled by %s %s, which would make another one here", o.Name, c.Kind, c.Name), maxCondition)
	}
	_, selects := s.NodeSelector[hostname]
	if slices.Contains(strings.Split(o.Annotations[migration.AddedSelectorAnnotation], ","), hostname) {
		selects = false // added by the migration that brought the VM here, and not needed for the next one
	}
	for _, t := range s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			selects = selects || e.Key == hostname || e.Key == "metadata.name"
		}
	}
	if selects {
		return cut(fmt.Sprintf("launcher pod %s is pinned to its host by its node selector or affinity", o.Name), maxCondition)
	}
	return ""
}

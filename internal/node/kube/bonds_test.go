//go:build !unit

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
)

func TestALauncherPodThatIsPinnedIsSeen(t *testing.T) {
	for _, c := range []struct{ metadata, spec, want string }{
		{`{}`, `{"nodeName":"n"}`, ""},
		{`{"ownerReferences":[{"kind":"VirtualMachineInstance","name":"vm","controller":true}]}`, `{}`, ""},
		{`{"ownerReferences":[{"kind":"ReplicaSet","name":"rs","controller":true}]}`, `{}`, "controlled by ReplicaSet rs"},
		{`{}`, `{"nodeSelector":{"disk":"ssd"}}`, ""},
		{`{}`, `{"nodeSelector":{"kubernetes.io/hostname":"n"}}`, "pinned to its host"},
		{`{"annotations":{"vmgrace.io/added-node-selector":"disk,kubernetes.io/hostname"}}`, `{"nodeSelector":{"kubernetes.io/hostname":"n"}}`, ""},
		{`{}`, `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name"}]}]}}}}`, "pinned to its host"},
		{`{}`, `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone"}]}]}}}}`, ""},
		{`{}`, `{"affinity":7}`, ""},
		{`{}`, `{"volumes":[{"name":"scratch","ephemeral":{"volumeClaimTemplate":{}}}]}`, "volume scratch of launcher pod  is made anew"},
		{`{}`, `{"volumes":[` + strings.TrimSuffix(strings.Repeat(`{"name":"a","persistentVolumeClaim":{"claimName":"a"}},`, maxVolumes+1), ",") + `]}`, "more than 64 volumes"},
	} {
		var o object
		if err := json.Unmarshal([]byte(`{"metadata":`+c.metadata+`,"spec":`+c.spec+`}`), &o); err != nil {
			t.Fatal(err)
		}
		if got := bondsOf(&o).reason; (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %q, want %q", c.metadata, c.spec, got, c.want)
		}
	}
}

// launcher returns the bonds of a launcher pod with these volumes and this container.
func launcherWith(t *testing.T, volumes, container string) bonds {
	t.Helper()
	var o object
	text := `{"metadata":{"name":"p"},"spec":{"containers":[` + container + `],"volumes":[` + volumes + `]}}`
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return bondsOf(&o)
}

func TestHostDevicesOfALauncherPodAreSeen(t *testing.T) {
	const limits = `{"resources":{"limits":{%s}}}`
	for _, c := range []struct{ volumes, container, want string }{
		{``, fmt.Sprintf(limits, `"cpu":"1","memory":"1Gi","hugepages-2Mi":"1Gi","devices.kubevirt.io/kvm":"1","squat.ai/tun":1,"x.io/vhost-net":"1","attachable.kubernetes.io/a":"1"`), ""},
		{``, fmt.Sprintf(limits, `"devices.kubevirt.io/kvm":"1","nvidia.com/gpu":"1"`), "launcher pod p has host device nvidia.com/gpu"},
		{``, fmt.Sprintf(limits, `"evilkubernetes.io/gpu":"1"`), "host device evilkubernetes.io/gpu"},
		{`{"name":"d","hostPath":{"path":"/dev/kvm"}}`, `{"volumeMounts":[{"name":"d"}]}`, ""},
		{`{"name":"d","hostPath":{"path":"/dev/vfio/1"}}`, `{"volumeMounts":[{"name":"d","readOnly":true}]}`, "host device /dev/vfio/1"},
		{`{"name":"d","hostPath":{"path":"//dev/"}}`, `{"volumeMounts":[{"name":"d"}]}`, "host device //dev/"},
		{`{"name":"d","hostPath":{"path":"/dev/vfio/1"}}`, `{}`, ""},
		{`{"name":"d","hostPath":{"path":"/devices"}}`, `{"volumeMounts":[{"name":"d"}]}`, ""},
	} {
		if got := launcherWith(t, c.volumes, c.container).device; (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %q, want %q", c.volumes, c.container, got, c.want)
		}
	}
	var o object
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"p"},"spec":{"resourceClaims":[{"name":"gpu"}]}}`), &o); err != nil {
		t.Fatal(err)
	}
	if got := bondsOf(&o).device; got != "launcher pod p has resource claim gpu" {
		t.Errorf("a resource claim: %q", got)
	}
}

func TestClaimsAndPathsOfALauncherPodAreSeen(t *testing.T) {
	got := launcherWith(t, `{"name":"a","persistentVolumeClaim":{"claimName":"data"}},{"name":"b","hostPath":{"path":"/images"}},
		{"name":"c","hostPath":{"path":"/etc/pki"}},{"name":"d","hostPath":{"path":"/unused"}},{"name":"e","emptyDir":{}},{"name":"f","persistentVolumeClaim":{"claimName":"more"}}`,
		`{"volumeMounts":[{"name":"a"},{"name":"b"},{"name":"c","readOnly":true}]},{"volumeMounts":[{"name":"b","readOnly":true}]}`)
	want := migratable.Launcher{Claims: []string{"other", "data", "more"}, Paths: []string{"/images"}, Reason: "first"}
	if diff := cmp.Diff(want, got.with(migratable.Launcher{Claims: []string{"other"}, Reason: "first"})); diff != "" {
		t.Error(diff)
	}
}

// Given launcher pods with claims, and volumes of all kinds, on a real API server. Then an agent
// with its rights knows which of them only this node can use.
func TestWhichVolumesAreOfOneNodeAlone(t *testing.T) {
	r := newRig(t).watching()
	const affinity = `"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":%q,"operator":"In","values":[%s]}]}]}}`
	host := func(hosts string) string { return fmt.Sprintf(affinity, "kubernetes.io/hostname", hosts) }
	for name, c := range map[string]struct {
		modes, volume string
		want          migratable.Volume
	}{
		"shared":      {`"ReadWriteMany"`, `"nfs":{"server":"s","path":"/a"}`, migratable.Volume{}},
		"one-of-two":  {`"ReadWriteOnce","ReadWriteMany"`, `"nfs":{"server":"s","path":"/a"}`, migratable.Volume{}},
		"read":        {`"ReadOnlyMany"`, `"nfs":{"server":"s","path":"/a"}`, migratable.Volume{}},
		"once":        {`"ReadWriteOnce"`, `"nfs":{"server":"s","path":"/a"}`, migratable.Volume{Bound: "is not shared: its access modes are ReadWriteOnce, not ReadWriteMany"}},
		"once-read":   {`"ReadWriteOnce","ReadOnlyMany"`, `"nfs":{"server":"s","path":"/a"}`, migratable.Volume{Bound: "is not shared: its access modes are ReadWriteOnce, ReadOnlyMany, not ReadWriteMany"}},
		"one-pod":     {`"ReadWriteOncePod"`, `"csi":{"driver":"d","volumeHandle":"h"}`, migratable.Volume{Bound: "is not shared: its access modes are ReadWriteOncePod, not ReadWriteMany"}},
		"local":       {`"ReadWriteMany"`, `"local":{"path":"/a"},` + host(`"n1"`), migratable.Volume{Bound: "is not shared: its volume local is bound to node n1"}},
		"locals":      {`"ReadWriteMany"`, `"local":{"path":"/a"},` + host(`"n1","n2"`), migratable.Volume{}},
		"device":      {`"ReadWriteMany"`, `"volumeMode":"Block","local":{"path":"/dev/a"},` + host(`"n1","n2"`), migratable.Volume{}},
		"host-path":   {`"ReadWriteMany"`, `"hostPath":{"path":"/a"}`, migratable.Volume{}},
		"zone":        {`"ReadWriteMany"`, `"csi":{"driver":"d","volumeHandle":"h"},` + fmt.Sprintf(affinity, "topology.kubernetes.io/zone", `"z"`), migratable.Volume{}},
		"csi-of-node": {`"ReadWriteMany"`, `"csi":{"driver":"d","volumeHandle":"h"},` + host(`"n1"`), migratable.Volume{Bound: "is not shared: its volume csi-of-node is bound to node n1"}},
	} {
		mode := `Filesystem`
		if strings.Contains(c.volume, `"Block"`) {
			mode = `Block`
		}
		pv := r.name + "-" + name
		r.must("POST", "/api/v1/persistentvolumes", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"capacity":{"storage":"1Gi"},"accessModes":[%s],%s}}`, pv, c.modes, c.volume))
		t.Cleanup(func() { r.do("DELETE", "/api/v1/persistentvolumes/"+pv, "") })
		r.must("POST", "/api/v1/namespaces/"+r.name+"/persistentvolumeclaims", fmt.Sprintf(
			`{"metadata":{"name":%q},"spec":{"storageClassName":"","volumeName":%q,"volumeMode":%q,"accessModes":[%s],"resources":{"requests":{"storage":"1Gi"}}}}`, name, pv, mode, c.modes))
		c.want.Bound = strings.ReplaceAll(c.want.Bound, "volume "+name, "volume "+pv)
		if got, err := r.Volume(t.Context(), r.name, name); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	// And what is not known is no answer.
	if v, err := r.Volume(t.Context(), r.name, "missing"); err == nil {
		t.Errorf("a claim that is not there: %+v", v)
	}
	r.must("POST", "/api/v1/namespaces/"+r.name+"/persistentvolumeclaims",
		`{"metadata":{"name":"unbound"},"spec":{"storageClassName":"","accessModes":["ReadWriteMany"],"resources":{"requests":{"storage":"1Gi"}}}}`)
	if v, err := r.Volume(t.Context(), r.name, "unbound"); err == nil {
		t.Errorf("a claim without a volume: %+v", v)
	}
}

// Given a VMI with a launcher pod on this node that has a claim and a host device. Then they are
// the VMI's, until the pod has ended.
func TestWhatBindsALauncherPodIsOfItsVMI(t *testing.T) {
	r := newRig(t)
	r.mayTell()
	r.watching()
	r.makeVMI("vm", "", `{}`)
	r.must("POST", strings.TrimSuffix(r.podPath(""), "/"), fmt.Sprintf(`{"metadata":{"name":"virt-launcher-vm","labels":{"kubevirt.io":"virt-launcher"},"annotations":{"kubevirt.io/domain":"vm"}},
		"spec":{"nodeName":%q,"volumes":[{"name":"disk","persistentVolumeClaim":{"claimName":"data"}},{"name":"gpu","hostPath":{"path":"/dev/dri"}},{"name":"images","hostPath":{"path":"/images"}}],
		"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"disk","mountPath":"/disk"},{"name":"gpu","mountPath":"/gpu"},{"name":"images","mountPath":"/images"}]}]}}`, r.name))
	of := func(want migratable.Launcher) func() bool {
		return func() bool { return cmp.Equal(r.migratableOf("vm", "").Launcher, want) }
	}
	r.eventually(of(migratable.Launcher{Claims: []string{"data"}, Paths: []string{"/images"}, Device: "launcher pod virt-launcher-vm has host device /dev/dri"}), "not the VMI's")
	if a := r.do("PATCH", r.podPath("virt-launcher-vm")+"/status", `{"status":{"phase":"Succeeded"}}`); a.code != http.StatusOK {
		t.Fatalf("%d %s", a.code, a.body)
	}
	r.eventually(of(migratable.Launcher{}), "of a pod that has ended")
}

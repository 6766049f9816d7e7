package process

import "testing"

// Containers as containerd, CRI-O and Docker name their cgroups, with each driver of kubelet's.
func TestAContainersCgroup(t *testing.T) {
	const id, other = "1f00000000000000", "2f00000000000000"
	for text, want := range map[string]bool{
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n":       true,
		"0::/kubepods.slice/kubepods-pod1.slice/crio-" + id + ".scope/container/qemu\n":  true,
		"0::/kubepods/burstable/pod1/" + id + "\n":                                       true,
		"4:memory:/kubepods/pod1/" + id + "\n0::/\n":                                     true,
		"0::/kubepods/pod1/" + other + "\n":                                              false,
		"0::/kubepods/pod1/" + id + "0\n":                                                false,
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + other + ".scope\n":    false,
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope.mount\n": false,
		"": false,
	} {
		if got := OfContainer([]byte(text), id); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if OfContainer([]byte(text), "") {
			t.Errorf("%q: a container without an ID", text)
		}
	}
}

package inpod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

const pod = "8c3a1f70-5a4e-4b0c-9d3e-0f1e2d3c4b5a"

func TestWhichCgroupsAreAPods(t *testing.T) {
	const other = "00000000-5a4e-4b0c-9d3e-0f1e2d3c4b5a"
	unit := strings.ReplaceAll(pod, "-", "_")
	for text, want := range map[string]bool{
		// cgroup v2, kubelet's driver systemd, and each class of service.
		"0::/kubepods.slice/kubepods-pod" + unit + ".slice/cri-containerd-1f.scope\n":                                 true,
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/crio-1f.scope\n":        true,
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice/crio-1f.scope/qemu\n": true,
		// cgroup v2, cgroupfs.
		"0::/kubepods/pod" + pod + "/1f\n":            true,
		"0::/kubepods/burstable/pod" + pod + "/1f\n":  true,
		"0::/kubepods/besteffort/pod" + pod + "/1f\n": true,
		// cgroup v1, alone and beside an empty v2.
		"4:memory:/kubepods/burstable/pod" + pod + "/1f\n1:name=systemd:/kubepods/burstable/pod" + pod + "/1f\n0::/\n": true,
		// cgroup v1 with systemd; with controllers that kubelet does not use; beside a
		// v2 that has the runtime's own; a container that is being removed.
		"4:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice/crio-1f.scope\n" +
			"1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice/crio-1f.scope\n": true,
		"12:rdma:/\n11:misc:/\n3:pids:/kubepods/pod" + pod + "/1f\n":                                               true,
		"3:pids:/kubepods/besteffort/pod" + pod + "/1f\n0::/system.slice/containerd.service\n":                     true,
		"0::/kubepods/burstable/pod" + pod + "/1f (deleted)\n":                                                     true,
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/crio-1f/container\n": true,
		// kubelet below another cgroup (kind), and an agent in a cgroup namespace.
		"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + unit + ".slice/1f\n": true,
		"0::/kubepods/pod" + other + "/1f/kubepods/pod" + pod + "/2f\n":                        true,
		"0::/../../kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/x\n":      true,
		// Others.
		"":                                false,
		"0::/\n":                          false,
		"0::/system.slice/sshd.service\n": false,
		"0::/kubepods/burstable/pod" + other + "/1f\n":       false,
		"0::/kubepods/burstable/pod" + pod + "x/1f\n":        false,
		"0::/kubepods/xpod" + pod + "/1f\n":                  false,
		"0::/pod" + unit + "/1f\n":                           false,
		"0::/kubepods/pod" + pod[:len(pod)-1] + "/1f\n":      false,
		"0::/kubepods.slice/kubepods-pod" + unit + "\n":      false,
		"0::/kubepods.slice/kubepods-pod" + pod + ".slice\n": false,
		"3:pids:/\n1:name=systemd:/system.slice\n0::/\n":     false,
		"0::/kubepods-pod" + unit + ".slicex/1f\n":           false,
		// A process that was moved to another pod's cgroup in one hierarchy is rejected.
		"4:memory:/kubepods/pod" + pod + "/1f\n2:cpu:/kubepods/pod" + other + "/1f\n": false,
		"4:memory:/kubepods/pod" + pod + "/1f\n2:cpu:/kubepods\n":                     false,
	} {
		if got := process.OfPod([]byte(text), pod); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func FuzzWhatTheKernelSaysOfAProcess(f *testing.F) {
	f.Add("Name:\tqemu\\nPPid:\t1\nPPid:\t7\nNSpid:\t70\t5\n", "0::/kubepods/pod"+pod+"/x\n")
	f.Add("NSpid:\t", ":::\n::\n")
	f.Fuzz(func(t *testing.T, status, cgroup string) {
		s, err := parseStatus([]byte(status))
		if err == nil && s.inner == 0 {
			t.Errorf("%q has no pid", status)
		}
		if process.OfPod([]byte(cgroup), pod) && !strings.Contains(cgroup, strings.ReplaceAll(pod, "-", "_")) && !strings.Contains(cgroup, pod) {
			t.Errorf("%q is the pod's", cgroup)
		}
	})
}

func TestAnAnswerToNoRequestIsNone(t *testing.T) {
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	w.look(t, domain)
	v := w.vm(domain)
	for _, n := range []uint64{1, 1 << 63} {
		v.learn(&watch.View{
			Directory: grace.Directory{Present: true, Registered: true, UID: "u-1", Readable: true},
			Asking:    signals.Asking{Asks: signals.AsksLauncher, PID: 1, Requested: n, Result: "ok"},
		})
		if v.answered != 0 {
			t.Errorf("an answer to %d counts", n)
		}
	}
	d, err := w.Get(t.Context(), domain)
	kit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	kit.Must(t, w.Ask(ctx, domain, d.Instance, grace.ModeACPI))
}

func TestADirectoryThatCannotBeReadProvesNothing(t *testing.T) {
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	w.look(t, domain)
	before, err := w.Get(t.Context(), domain)
	kit.Must(t, err)
	// Given a directory that is no directory any more.
	kit.Must(t, os.Rename(filepath.Join(w.base, domain), filepath.Join(w.base, "away")))
	kit.Must(t, os.WriteFile(filepath.Join(w.base, domain), nil, 0o600))
	// Then a running VM is still there, and an unknown one is not "not found".
	if after, err := w.Get(t.Context(), domain); err != nil || after != before {
		t.Errorf("got %+v, %v", after, err)
	}
	if _, err := w.Get(t.Context(), "ns_never-was"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	kit.Must(t, os.Remove(filepath.Join(w.base, domain)))
	kit.Must(t, os.Rename(filepath.Join(w.base, "away"), filepath.Join(w.base, domain)))
}

func TestRequestsGrowFromOneAgentToTheNext(t *testing.T) {
	w := given(t)
	domain, dir := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	last := uint64(0)
	for range 2 {
		d := New()
		v, ok := d.Directory(domain, "", dir.(*vm).Directory).(*vm)
		if !ok {
			t.Fatal("not a vm")
		}
		_, err := v.Look()
		kit.Must(t, err)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			n, err := v.write(ctx, grace.ModeACPI)
			cancel()
			kit.Must(t, err)
			if n <= last {
				t.Errorf("request %d after %d", n, last)
			}
			last = n
		}
		kit.Must(t, d.Close())
		kit.Eventually(t, "some milliseconds have passed", func() bool { return elapsed() > last })
	}
}

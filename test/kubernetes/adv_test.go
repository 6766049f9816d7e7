package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAdvKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	good, _ := os.ReadFile(api.Kubeconfig)
	put := func(name, text string) string {
		p := dir + "/" + name
		_ = os.WriteFile(p, []byte(text), 0o600)
		return p
	}
	for name, path := range map[string]string{
		"missing":    dir + "/none",
		"garbage":    put("garbage", "\x00\x01garbage{{{"),
		"empty":      put("empty", ""),
		"directory":  dir,
		"incluster":  "",
		"wrongserver": put("ws", strings.Replace(string(good), api.URL, "https://127.0.0.1:1", 1)),
		"http": put("http", strings.Replace(string(good), "https://", "http://", 1)),
	} {
		a := machine.ClusterAgent(t, path, here).Launch(t)
		code, ended := a.Exited(4 * time.Second)
		t.Logf("%s: ended %v %d ready=%v\n%s", name, ended, code, !ended && a.Ready(), a.Log())
		if !ended {
			t.Log("watchup", a.Metrics(t)["vmgrace_vmi_watch_up"])
		}
		a.Kill()
	}
}

func TestAdvFiveHundred(t *testing.T) {
	w := given(t, api)
	metric := func(name string) float64 { return w.agent.Metrics(t)[name] }
	round := func(n int) {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: flood-%[1]d
  namespace: default
  labels: {kubevirt.io/nodeName: %[2]s, adv: flood}
spec: {terminationGracePeriodSeconds: 60}
---
apiVersion: v1
kind: Pod
metadata:
  name: flood-%[1]d
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: uid-%[1]d, adv: flood}
  annotations: {kubevirt.io/domain: flood-%[1]d}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers: [{name: launcher, image: none}]
`, i, here)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := w.api.TryKubectl(ctx, b.String(), "create", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		t.Log("there: goroutines", metric("go_goroutines"), "rss", metric("process_resident_memory_bytes")/1e6)
		w.api.Kubectl(t, "delete", "vmi", "-l", "adv=flood", "--wait=false")
		w.api.Kubectl(t, "delete", "pod", "-l", "adv=flood", "--force", "--grace-period=0")
		node.Eventually(t, time.Minute, func() bool { return metric("go_goroutines") < 60 }, "goroutines")
		t.Log("gone: goroutines", metric("go_goroutines"), "rss", metric("process_resident_memory_bytes")/1e6, "heap", metric("go_memstats_heap_inuse_bytes")/1e6)
	}
	t.Log("start: goroutines", metric("go_goroutines"), "rss", metric("process_resident_memory_bytes")/1e6)
	round(250)
	round(250)
	t.Log(len(w.agent.Log()), "bytes of log", w.agent.Log())
}

// the shim as a container that is restarted in the same pod
func TestAdvContainerRestart(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	v.waitGrace(2)
	// agent down; container OOM-killed; restarted with vm.json and a trigger left
	w.agent.Kill()
	v.shim.Kill()
	v.launcher.Write(t, "shutdown", "")
	v.shim = v.launcher.Shim(t, "--pid-file="+v.launcher.Path("vm.pid"))
	node.Eventually(t, soon, func() bool { return !v.launcher.Has("shutdown") }, "the trigger is not cleared")
	w.agent.Start(t)
	node.Never(t, 3*time.Second, v.Gone, "gone")
	v.untouched()
	from := v.signal()
	v.terminated(from, 2*time.Second, 50*ms)
	v.stopped("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestAdvOOMAndVolumeGone(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 60")
	from := time.Now()
	v.shim.Kill()
	v.terminated(from, 0, time.Second)
	v.stopped("LauncherDied", "Forced", "ShutdownStarted", "ShutdownForced")
	// force delete: killed, the volume goes at once
	f := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 60")
	w.api.Kubectl(t, "delete", "pod", "launcher-"+f.Name, "--force", "--grace-period=0")
	from = time.Now()
	f.shim.Kill()
	_ = os.RemoveAll(f.launcher.Dir)
	f.terminated(from, 0, time.Second)
}

func TestAdvLabelGoesAndComes(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 1")
	v.waitGrace(1)
	w.api.Kubectl(t, "label", "vmi", v.Name, "kubevirt.io/nodeName-")
	node.Never(t, 4*time.Second, v.Gone, "gone")
	v.untouched()
	w.api.Kubectl(t, "label", "vmi", v.Name, "kubevirt.io/nodeName="+here)
	w.api.Kubectl(t, "patch", "vmi", v.Name, "--type=json", "-p", `[{"op":"remove","path":"/spec/terminationGracePeriodSeconds"}]`)
	v.waitGrace(30)
	w.api.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"spec":{"terminationGracePeriodSeconds":3}}`)
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestAdvOddPods(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	v.waitGrace(2)
	for i, x := range []struct{ by, domain string }{{"", v.Name}, {`"another"`, v.Name}, {`""`, "../../etc"}, {`""`, strings.Repeat("x", 2000)}, {`""`, v.Name + "\\n"}} {
		by := ""
		if x.by != "" {
			by = ", kubevirt.io/created-by: " + x.by
		}
		w.api.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: odd-%d-%s
  labels: {kubevirt.io: virt-launcher%s}
  annotations: {kubevirt.io/domain: "%s"}
spec:
  nodeName: %s
  containers: [{name: launcher, image: none}]
`, i, v.Name, by, x.domain, here))
	}
	time.Sleep(2 * time.Second)
	v.untouched()
	for i := range 5 {
		w.api.Kubectl(t, "delete", "pod", fmt.Sprintf("odd-%d-%s", i, v.Name), "--force", "--grace-period=0")
		if i == 1 {
			from := v.signal()
			v.terminated(from, 2*time.Second, 50*ms)
			v.stopped("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
		}
	}
	if strings.Contains(w.agent.Log(), "panic") || strings.Contains(w.agent.Log(), "bug") {
		t.Error(w.agent.Log())
	}
}

func TestAdvPaused(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{}, "terminationGracePeriodSeconds: 30")
	v.Virsh(t, "suspend")
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	v.stopped("VMIDeleted", "Graceful", "ShutdownStarted", "ShutdownCompleted")
	_ = exec.Command
	_ = syscall.SIGTERM
}

package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// besideRights are all that an agent beside KubeVirt needs of the API server.
const besideRights = `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: beside}, rules: [
  {apiGroups: [kubevirt.io], resources: [virtualmachineinstances], verbs: [get, list, watch]},
  {apiGroups: [kubevirt.io], resources: [virtualmachineinstancemigrations], verbs: [list]},
  {apiGroups: [""], resources: [pods], verbs: [get, list, watch]},
  {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], resourceNames: [virtualmachineinstances.kubevirt.io], verbs: [get, list, watch]},
  {apiGroups: [""], resources: [events], verbs: [create]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: beside},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: beside},
  subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: beside}]}
`

// beside is an agent beside KubeVirt, with the rights that it is given.
type beside struct {
	world
	name string // of the node
}

func besideKubeVirt(t *testing.T, name string, args ...string) beside {
	t.Helper()
	w := newWorld(t, api, machine.ClusterAgent(t, api.As(t, "beside").Kubeconfig, name, append([]string{"--beside-kubevirt", "--dbus-socket="}, args...)...))
	w.installCRDs()
	w.api.KubectlApply(w, besideRights)
	w.agent.Start(t)
	return beside{w, name}
}

// launched is a VM of KubeVirt's: a VMI and its launcher pod, which no kubelet runs.
type launched struct {
	beside
	vm, uid, pod, dir string
}

func (b beside) launch(vm string) launched {
	b.Helper()
	l := launched{beside: b, vm: vm}
	b.api.KubectlApply(b, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default, labels: {kubevirt.io/nodeName: %s}}
spec: {terminationGracePeriodSeconds: 20}
`, vm, b.name))
	l.patch(`{"status":{"phase":"Running","nodeName":"` + b.name + `"}}`)
	l.uid = b.get("vmi", vm, "{.metadata.uid}")
	b.api.KubectlApply(b, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: virt-launcher-%[1]s-abcde
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: %[2]q}
  annotations: {kubevirt.io/domain: %[1]s, vmgrace.io/hold-for: "PreemptionByScheduler,DeletionByTaintManager",
    vmgrace.io/shutdown-reserve-seconds: "50", vmgrace.io/migration-allowance-seconds: "150", vmgrace.io/launcher-padding-seconds: "30"}
spec: {nodeName: %[3]s, terminationGracePeriodSeconds: 200, containers: [{name: compute, image: none}]}
`, vm, l.uid, b.name))
	l.pod = b.get("pod", l.podName(), "{.metadata.uid}")
	l.dir = filepath.Join(b.agent.KubeletDir, "pods", l.pod, "volumes", "kubernetes.io~empty-dir", "vmgrace")
	kit.Must(b, os.MkdirAll(l.dir, 0o777))
	return l
}

func (l launched) podName() string { return "virt-launcher-" + l.vm + "-abcde" }

func (l launched) patch(status string) {
	l.Helper()
	l.api.Kubectl(l, "patch", "vmi", l.vm, "--subresource=status", "--type=merge", "-p", status)
}

// delete deletes the pod, for a reason of Kubernetes' if there is one.
func (l launched) delete(reason string) {
	l.Helper()
	if reason != "" {
		l.api.Kubectl(l, "patch", "pod", l.podName(), "--subresource=status", "--type=merge", "-p",
			`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"`+reason+`","lastTransitionTime":"`+time.Now().UTC().Format(time.RFC3339)+`"}]}}`)
	}
	l.api.Kubectl(l, "delete", "pod", l.podName(), "--wait=false")
}

// hook does what the pod's preStop hook does.
const hook = `cd "$1" && echo >.shutdown && mv -f .shutdown shutdown
n=0; until [ -e answered ]; do [ $n -lt 20 ] || exit 3; n=$((n+1)); sleep 0.1; done
echo answered >>said; while [ -e held ]; do sleep 0.1; done`

// signal runs the hook. The channel has how it ended, and after how long.
func (l launched) signal() <-chan time.Duration {
	l.Helper()
	took := make(chan time.Duration, 1)
	begin := time.Now()
	cmd := exec.Command("sh", "-c", hook, "sh", l.dir)
	kit.Must(l, cmd.Start())
	l.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() {
		if cmd.Wait() == nil {
			took <- time.Since(begin)
		}
		close(took)
	}()
	return took
}

// waits checks that the hook still waits after it was answered.
func (l launched) waits(hook <-chan time.Duration) {
	l.Helper()
	node.Eventually(l, soon, func() bool { _, err := os.Stat(filepath.Join(l.dir, "said")); return err == nil }, "the hook is answered")
	select {
	case <-hook:
		l.Fatal("the hook does not wait")
	default:
	}
}

// goesOn waits for the end of the hook, and returns how long it took.
func (l launched) goesOn(hook <-chan time.Duration) time.Duration {
	l.Helper()
	select {
	case took, ok := <-hook:
		if !ok {
			l.Fatal("the hook was not answered")
		}
		return took
	case <-time.After(soon):
		l.Fatal("the hook still waits")
		return 0
	}
}

func (l launched) events(want ...string) {
	l.Helper()
	node.Eventually(l, soon, func() bool {
		got := strings.Fields(l.objects.Read(l, objects.Query{Kind: "event", Namespace: "default", Fields: "involvedObject.uid=" + l.uid, Path: `{range .items[*]}{.reason}{"\n"}{end}`}))
		slices.Sort(got)
		return slices.Equal(got, want)
	}, "the VMI's Events are not %v", want)
}

// Given KubeVirt's launchers on one node. When one is preempted, then its hook waits until the VM
// has moved; a restart of the agent changes nothing. When one is deleted by anybody else, or
// nobody moves its VM, then it does not.
func TestBesideKubeVirtAPreemptedLauncherWaitsUntilItsVMHasMoved(t *testing.T) {
	b := besideKubeVirt(t, "beside-a")
	moves, plain, stays := b.launch("moves"), b.launch("plain"), b.launch("stays")

	plain.delete("")
	if took := plain.goesOn(plain.signal()); took > time.Second {
		t.Errorf("a plain deletion took %v", took)
	}
	stays.delete("DeletionByTaintManager")
	unmarked := stays.signal()

	moves.delete("PreemptionByScheduler")
	hook := moves.signal()
	moves.patch(`{"status":{"evacuationNodeName":"` + b.name + `"}}`)
	moves.waits(hook)
	before, ok := one(b.agent.Status(t), "moves")
	if !ok || before.Phase != "Held" || before.Cause != "PreemptionByScheduler" || before.UID != moves.uid {
		t.Errorf("status: %+v", before)
	}
	stays.waits(unmarked)
	if took := stays.goesOn(unmarked); took < 4500*ms || took > 8*time.Second {
		t.Errorf("nobody marked it, and it was held for %v", took)
	}

	b.agent.Kill()
	b.agent.Start(t)
	moves.patch(`{"status":{"migrationState":{"sourceNode":"` + b.name + `","targetNode":"beside-b"}}}`)
	if after, _ := one(b.agent.Status(t), "moves"); after.Deadline != before.Deadline || after.StartedAt != before.StartedAt {
		t.Errorf("after a restart %+v, before %+v", after, before)
	}
	moves.waits(hook)
	// KubeVirt's virt-handler moves the label first, or the status.
	moves.api.Kubectl(t, "label", "vmi", "moves", "--overwrite", "kubevirt.io/nodeName=beside-b")
	moves.goesOn(hook)
	node.Eventually(t, soon, func() bool { return len(b.agent.Status(t)) == 0 }, "the holds are forgotten")
	if m := b.agent.Metrics(t); m[`vmgrace_holds_ended_total{outcome="Moved"}`] != 1 || m["vmgrace_held_shutdowns"] != 0 {
		t.Errorf("metrics: %v", m)
	}
	moves.events("ShutdownHeld")
	stays.events("ShutdownHeld", "ShutdownStarted")
	plain.events()
}

func one(all []node.VMStatus, name string) (node.VMStatus, bool) {
	i := slices.IndexFunc(all, func(s node.VMStatus) bool { return s.Name == name })
	if i < 0 {
		return node.VMStatus{}, false
	}
	return all[i], true
}

// Given a launcher without KubeVirt's virt-handler. When the node shuts down, then PID 1 of its
// container gets SIGTERM once, the node waits for its QEMU, and somebody says that nobody asks
// the guest.
func TestBesideKubeVirtANodesShutdownReachesTheLaunchers(t *testing.T) {
	const container = "1f00000000000000000000000000000000000000000000000000000000000001"
	m := logind.Start(t, time.Minute)
	b := besideKubeVirt(t, "beside-c", "--dbus-socket="+m.Socket)
	l := b.launch("polite")
	l.api.Kubectl(t, "patch", "pod", l.podName(), "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","containerStatuses":[{"name":"compute","image":"none","imageID":"none","ready":true,"restartCount":0,"containerID":"containerd://`+container+`"}]}}`)
	marks, qemu := l.process(container)
	node.Eventually(t, soon, func() bool {
		now := b.agent.Metrics(t)
		runs, known := now["vmgrace_virt_handler_running"]
		return now["vmgrace_node_shutdown_delayed"] == 1 && now["vmgrace_node_shutdown_needed_seconds"] == 25 && known && runs == 0
	}, "shutdowns are delayed")
	m.Shutdown(t, "PowerOff")
	node.Eventually(t, soon, func() bool { return text(marks) == "up\nTERM\n" }, "the launcher gets SIGTERM")
	<-time.After(time.Second) // it must not get another, nor the node go down
	if _, _, down := m.Down(t); down || text(marks) != "up\nTERM\n" {
		t.Errorf("down %v, %q", down, text(marks))
	}
	kit.Must(t, syscall.Kill(qemu, syscall.SIGKILL))
	node.Eventually(t, soon, func() bool { _, _, down := m.Down(t); return down }, "the machine does not go down")
	node.Eventually(t, soon, func() bool {
		return strings.Contains(b.objects.Read(b, objects.Query{Kind: "event", Namespace: "default", Fields: "involvedObject.kind=Node,involvedObject.name=" + b.name, Path: "{.items[*].reason}"}), "GuestsNotAsked")
	}, "an Event on the Node says that nobody asks the guests")
}

func text(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(b)
}

// process starts what runs in the container: PID 1, and a child that is called like QEMU.
func (l launched) process(container string) (marks string, qemu int) {
	l.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "pids")
	}
	top := filepath.Join(root, "vmgrace-test-kubepods-"+strconv.Itoa(os.Getpid()))
	group := filepath.Join(top, "pod"+l.pod, container)
	kit.Must(l, os.MkdirAll(group, 0o755))
	dir := l.TempDir()
	sleep, err := exec.LookPath("sleep")
	kit.Must(l, err)
	program, err := os.ReadFile(sleep)
	kit.Must(l, err)
	kit.Program(l, filepath.Join(dir, "qemu-kvm"), string(program))
	marks = filepath.Join(dir, "marks")
	cmd := exec.Command("sh", "-c", `read go; trap "echo TERM >>`+marks+`" TERM; `+dir+`/qemu-kvm 300 & echo up >>`+marks+`; while :; do wait; sleep 0.05; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	kit.Must(l, err)
	kit.Must(l, cmd.Start())
	l.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		for path := group; path != root; path = filepath.Dir(path) {
			kit.Eventually(l, "its processes have ended", func() bool { return os.Remove(path) == nil })
		}
	})
	kit.Must(l, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	_, err = in.Write([]byte("go\n"))
	kit.Must(l, err)
	kit.Eventually(l, "its child runs", func() bool {
		for _, pid := range strings.Fields(text(filepath.Join(group, "cgroup.procs"))) {
			if strings.HasPrefix(text("/proc/"+pid+"/comm"), "qemu-kvm") {
				qemu, _ = strconv.Atoi(pid)
			}
		}
		return qemu != 0 && text(marks) != ""
	})
	return marks, qemu
}

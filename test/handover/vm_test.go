//go:build !unit

package handover

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/node"
)

// vm is a guest with its VMI, the place where it runs and the place to which it moves.
type vm struct {
	*node.VM // of the node that it was started on

	w            world
	uid          string // the VMI's
	here, there  place
	migration    string
	migrationUID string
	moves        int
	cause        string // of its held shutdown
	disk         *disk  // on which the guest counts; nil = it has none
	stopped      bool   // paused by its user
	spec         node.Spec
}

// place is a launcher pod of the VM on a host.
type place struct {
	*host

	pod, podUID string
	launcher    *node.Launcher
	shim        *node.Process
}

// guarded boots a guest on node-a with its VMI, its launcher pod and its shim. It waits
// until the agent guards the guest.
func (w world) guarded(s node.Spec) *vm {
	w.Helper()
	s.Namespace = "default"
	s = s.Complete()
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default, labels: {kubevirt.io/nodeName: node-a}}
spec: {terminationGracePeriodSeconds: 60}
`, s.Name))
	v := &vm{w: w, uid: w.get("vmi", s.Name, "{.metadata.uid}"), spec: s, VM: &node.VM{Guest: &node.Guest{Spec: s}}}
	v.here = v.place(w.a, "")
	w.kind.boot(v, s)
	v.UID = v.uid
	v.WaitGuarded(w)
	return v
}

// place creates a launcher pod on a node, for a migration unless incoming is "".
func (v *vm) place(h *host, incoming string) place {
	v.w.Helper()
	v.moves++
	p := place{host: h, pod: fmt.Sprintf("%s-%d", v.Name, v.moves)}
	p.podUID = v.w.pod(p.pod, v.Name, v.uid, h.name, incoming)
	p.launcher = h.agent.PodLauncher(v.w, "default", v.Name, v.uid, p.podUID)
	return p
}

// pod creates a launcher pod that is bound to a node and returns its UID. incoming is the UID of
// the migration whose target it is, if any.
func (w world) pod(name, vmi, uid, on, incoming string) string {
	w.Helper()
	labels := map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid}
	annotations := map[string]string{"kubevirt.io/domain": vmi}
	if incoming != "" { // as the controller makes a target pod
		labels[kubevirt.MigrationJobLabel], annotations["vmgrace.io/incoming"] = incoming, incoming
	}
	text, err := json.Marshal(map[string]any{"name": name, "namespace": "default", "labels": labels, "annotations": annotations})
	if err != nil {
		w.Fatal(err)
	}
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: %s
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 600
  containers: [{name: launcher, image: none}]
`, text, on))
	return w.get("pod", name, "{.metadata.uid}")
}

// schedule creates a migration and brings it to the phase Scheduled, as the controller
// does.
func (v *vm) schedule(to *host, options string) {
	v.w.Helper()
	v.migrates(to, options, func() { v.w.kind.receive(v) })
}

// migrates is schedule with another launcher for the target.
func (v *vm) migrates(to *host, options string, receive func()) {
	w := v.w
	w.Helper()
	v.migration = fmt.Sprintf("move-%s-%d", v.Name, v.moves+1)
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: %s, namespace: default, labels: {vmgrace.io/source-node: %s, vmgrace.io/target-node: %s}}
spec: {vmiName: %s}
`, v.migration, v.here.name, to.name, v.Name))
	v.migrationUID = w.get("vmim", v.migration, "{.metadata.uid}")
	v.there = v.place(to, v.migrationUID)
	receive()
	v.patch(fmt.Sprintf(`{"phase":"Scheduled","migrationState":{"migrationUid":%q,"vmiUID":%q,"gracePeriodSeconds":60,"sourceNode":%q,"sourcePodUID":%q,"targetNode":%q,"targetPodUID":%q,"options":{%s}}}`,
		v.migrationUID, v.uid, v.here.name, v.here.podUID, to.name, v.there.podUID, options))
}

func (v *vm) patch(status string) {
	v.w.Helper()
	v.w.api.Kubectl(v.w, "patch", "vmim", v.migration, "--subresource=status", "--type=merge", "-p", `{"status":`+status+`}`)
}

// states returns the states that the two agents report: source/target.
func (v *vm) states() string {
	v.w.Helper()
	return v.w.get("vmim", v.migration, "{.status.migrationState.vmgraceSourceState}/{.status.migrationState.vmgraceTargetState}")
}

func (v *vm) phase() string {
	v.w.Helper()
	return v.w.get("vmim", v.migration, "{.status.phase}")
}

// decided waits until both agents have reported their final states and checks that the
// guest runs only where they say. Then it does what the controller does. moved tells
// whether the guest has moved.
func (v *vm) decided() (moved bool) {
	w := v.w
	w.Helper()
	var said string
	node.Eventually(w, 2*time.Minute, func() bool {
		said = v.states()
		return said == "Gone/Running" || said == "Running/Absent"
	}, "the migration of %s is not decided", v.Name)
	moved = said == "Gone/Running"
	is, was := v.here, v.there
	if moved {
		is, was = was, is
	}
	node.Eventually(w, soon, func() bool {
		return (is.runs(v.Domain) || v.stopped && is.state(v.Domain) == "paused") && was.state(v.Domain) == ""
	},
		"%s is not on %s alone, as the agents say: %s", v.Domain, is.name, said)
	if moved {
		if s := was.launcher.WaitStopped(w, soon); s.Outcome != "Migrated" || s.Cause != v.cause {
			w.Errorf("status.json of the source: %+v", s)
		}
		if code, ok := was.shim.Exited(soon); !ok || code != 0 {
			w.Errorf("the source's shim ends with %d, %v", code, ok)
		}
		w.api.Kubectl(w, "label", "vmi", v.Name, "kubevirt.io/nodeName="+is.name, "--overwrite")
		v.patch(`{"phase":"Succeeded"}`)
	} else {
		v.patch(`{"phase":"Failed"}`)
		was.shim.Kill()
	}
	w.api.Kubectl(w, "delete", "pod", was.pod, "--grace-period=0", "--force")
	node.Eventually(w, soon, func() bool {
		s, ok := is.agent.StatusOf(w, v.Guest)
		return ok && s.Phase == "Running" && s.UID == v.uid
	}, "%s does not guard %s", is.name, v.Name)
	node.Eventually(w, soon, func() bool { _, ok := was.agent.StatusOf(w, v.Guest); return !ok }, "%s still has a record of %s", was.name, v.Name)
	if presses := v.Presses(); presses != 0 {
		w.Errorf("the guest was asked %d times", presses)
	}
	if up := strings.Count(v.Serial(), "vmgrace-guest: up"); up != 1 && !v.spec.Firmware { // which has no guest that says it
		w.Errorf("the guest has booted %d times", up) // each QEMU goes on with the console's file
	}
	v.here = is
	return moved
}

// ends deletes the VMI and checks that the guest is shut down where it is.
func (v *vm) ends() {
	w := v.w
	w.Helper()
	w.api.Kubectl(w, "delete", "vmi", v.Name)
	if s := v.here.launcher.WaitStopped(w, 2*soon); s.Outcome != "Graceful" || s.Cause != "VMIDeleted" {
		w.Errorf("status.json on %s: %+v", v.here.name, s)
	}
	node.Eventually(w, soon, func() bool {
		return strings.Count(v.events(""), "Shutdown") == 2
	}, "not ShutdownStarted and ShutdownCompleted, once")
}

// state returns the domain's state in libvirt's files on the node, or that of the QEMU in its
// launcher, and "" if the node has no such domain.
func (h *host) state(domain string) string {
	if q := h.inside.of(domain); q != nil {
		return q.state()
	}
	text, err := os.ReadFile(filepath.Join(h.RunDir(), domain+".xml"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "<domstatus state='")
	state, _, _ := strings.Cut(rest, "'")
	return state
}

// runs tells whether the guest runs on the node. It also looks for the process, because
// libvirt's file outlives QEMU for a moment.
func (h *host) runs(domain string) bool {
	if h.state(domain) != "running" {
		return false
	}
	return h.signal(domain, 0) == nil
}

// signal sends a signal to the domain's QEMU on this node. Signal 0 only tests whether it
// exists.
func (h *host) signal(domain string, s unix.Signal) error {
	if q := h.inside.of(domain); q != nil {
		return q.signal(s)
	}
	text, err := os.ReadFile(filepath.Join(h.RunDir(), domain+".pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	return unix.Kill(pid, s)
}

// watchForTwo watches the guest until the test ends. It fails the test if the guest runs on
// both nodes at once or if two guests write on its disk.
func (v *vm) watchForTwo() {
	ctx, cancel := context.WithCancel(v.w.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			// The second look at b excludes that its QEMU ended between the first two
			// looks.
			if v.w.b.runs(v.Domain) && v.w.a.runs(v.Domain) && v.w.b.runs(v.Domain) {
				v.w.Errorf("%s runs on both nodes", v.Domain)
				return
			}
			if !v.disk.alone(v) {
				v.w.Errorf("%s: two write on its disk: %s", v.Domain, v.Serial())
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	v.w.Cleanup(func() { cancel(); watching.Wait() })
}

// preempted deletes the launcher pod as the scheduler does, signals the launcher as kubelet
// does, and marks the VM as the controller does.
func (v *vm) preempted() {
	w := v.w
	w.Helper()
	v.cause = "PreemptionByScheduler"
	w.api.Kubectl(w, "annotate", "pod", v.here.pod, "vmgrace.io/hold-for=PreemptionByScheduler", "vmgrace.io/shutdown-reserve-seconds=90",
		"vmgrace.io/migration-allowance-seconds=150")
	w.api.Kubectl(w, "patch", "pod", v.here.pod, "--subresource=status", "-p",
		`{"status":{"phase":"Running","conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`)
	w.api.Kubectl(w, "delete", "pod", v.here.pod, "--wait=false")
	w.api.Kubectl(w, "patch", "vmi", v.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running","nodeName":"`+v.here.name+`","evacuationNodeName":"`+v.here.name+`"}}`)
	if err := v.here.shim.Signal(unix.SIGTERM); err != nil {
		w.Fatal(err)
	}
}

package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const launcherPod = `{"apiVersion":"v1","kind":"Pod",
"metadata":{"name":"virt-launcher-%[1]s","labels":{"kubevirt.io":"virt-launcher","kubevirt.io/created-by":%[2]q},"annotations":{"kubevirt.io/domain":%[1]q}},
"spec":{"nodeName":%[3]q,"terminationGracePeriodSeconds":600,"containers":[{"name":"launcher","image":"none"}]}}`

// awaken starts the guests of a node's VMIs, unless they run, and makes their launcher
// pods. The VMIs must not be deleted or made again afterwards.
func (f *fleet) awaken(nodeName string) {
	f.Helper()
	for _, name := range f.vmis[nodeName] {
		if f.guests[name] == nil {
			f.guests[name] = f.node().Start(f, node.Spec{Namespace: benchNamespace, Name: name, Firmware: true})
		}
	}
	for name, uid := range f.uids("vmi", "kubevirt.io/nodeName="+nodeName) {
		f.must(f.ask(http.MethodPost, podPath(benchNamespace, ""), fmt.Sprintf(launcherPod, name, uid, nodeName)))
	}
}

// uids returns the UIDs of objects by name.
func (f *fleet) uids(kind, label string) map[string]string {
	f.Helper()
	found := map[string]string{}
	out := f.api.Kubectl(f, "get", kind, "-n", benchNamespace, "-l", label, "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if name, uid, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[name] = uid
		}
	}
	return found
}

// launch starts the shims of a node's launcher pods, as shipped, in the volumes where the
// node's agent looks for them.
func (w *watcher) launch(nodeName string) (shims []*node.Process) {
	f := w.fleet
	f.Helper()
	vmis, pods := f.uids("vmi", "kubevirt.io/nodeName="+nodeName), f.uids("pod", "kubevirt.io=virt-launcher")
	for _, name := range f.vmis[nodeName] {
		l := w.PodLauncher(f, benchNamespace, name, vmis[name], pods["virt-launcher-"+name])
		shims = append(shims, l.Shim(f, "--pid="+strconv.Itoa(f.guests[name].PID)))
	}
	return shims
}

// guards waits until the agent has a record of each VM of its node.
func (w *watcher) guards(nodeName string) {
	f := w.fleet
	f.Helper()
	want := len(f.vmis[nodeName])
	node.Eventually(f, time.Minute, func() bool { return len(w.Status(f)) == want }, "%d VMs are guarded", want)
}

// running measures row f in a cluster with VMs that run: there are guests, VMIs, launcher
// pods and shims, and nothing happens.
func running(b *bench) []figure {
	const nodeName = "node-running"
	f := b.fleet()
	f.fill(nodeName, 2*b.guests)
	f.awaken(nodeName)
	w := f.watcher(nodeName)
	w.launch(nodeName)
	w.watch()
	w.guards(nodeName)
	line := func(what, target string, u unit, value float64) figure {
		return figure{row: "f", what: fmt.Sprintf("idle with %d guests in a cluster: %s", 2*b.guests, what), target: target, unit: u, ours: []float64{value}}
	}
	begin, before := time.Now(), b.used(w.Process)
	b.pause(b.idle)
	after, took := b.used(w.Process), time.Since(begin).Seconds()
	return []figure{
		line("CPU, of a core", "≤ 0.2 %", percent, (after.cpu-before.cpu)/took),
		line("wake-ups", "≤ 20/s", perSecond, (after.wakeups-before.wakeups)/took),
		line("anonymous memory (RssAnon)", "", mebibytes, b.anonymous(w.Process)),
		line("RSS", "", mebibytes, b.memory(w.Process)),
	}
}

//go:build !unit

package handover

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// moves is how often each guest is moved.
const moves = 5

// sending is what the source's agent logs when it has written the phase Running.
const sending = "sending the guest"

// BenchmarkMove is row l of make bench. The agents and virsh in turns move guests of the same
// size to and fro, one of libvirt's with the same transport as virsh, and one in its pod. The
// total time is from the phase Running, or from virsh's start, until the guest runs on the
// target. The downtime is from the event of libvirt or QEMU that the guest was stopped on the
// source until the event that it was resumed on the target.
func BenchmarkMove(b *testing.B) {
	b.Run("tunnelled", func(b *testing.B) {
		w := given(b)
		beside(b, w, "--tunnelled", (*host).URI, mover{"agents", w.guarded(node.Spec{})}, mover{"pod", w.of(inPods{}).guarded(node.Spec{})})
	})
	b.Run("native", func(b *testing.B) {
		w, uri := givenNative(b)
		beside(b, w, "--tls", func(to *host) string { return strings.ReplaceAll(uri, "{{address}}", to.address) }, mover{"agents", w.guarded(node.Spec{})})
	})
}

// mover is a guest that the agents move, and the name of its figures.
type mover struct {
	name string
	*vm
}

// of returns the same nodes and agents with guests of another kind.
func (w world) of(k kind) world { w.kind = k; return w }

// beside moves guests by the agents, and one by virsh. flag and uri are virsh's.
func beside(b *testing.B, w world, flag string, uri func(to *host) string, ours ...mover) {
	b.Helper()
	events := lifecycles{w.a.Node: w.a.lifecycle(w), w.b.Node: w.b.lifecycle(w)}
	theirs := w.a.Boot(w, node.Spec{Namespace: "nobodys"}) // without a VMI: no agent guards it
	on := w.a
	report := func(b *testing.B, begin, stopped, resumed time.Time) {
		b.Helper()
		b.ReportMetric(resumed.Sub(begin).Seconds(), "s-total")
		b.ReportMetric(resumed.Sub(stopped).Seconds(), "s-downtime")
	}
	for range moves {
		for _, v := range ours {
			b.Run(v.name, func(b *testing.B) {
				begin, stopped, resumed := v.move(b, events)
				report(b, begin, stopped, resumed)
			})
			if w.Failed() {
				return
			}
		}
		b.Run("virsh", func(b *testing.B) {
			from, to := on, w.other(on)
			begin := time.Now()
			from.Virsh(w, "migrate", "--live", "--p2p", flag, theirs.Domain, uri(to))
			stopped := events.after(w, from, begin, theirs.Domain, suspended)
			report(b, begin, stopped, events.after(w, to, stopped, theirs.Domain, resumed))
			on = to
		})
	}
	on.Virsh(w, "destroy", theirs.Domain)
	for _, v := range ours {
		v.ends()
	}
}

// move moves the guest to the other node. It returns when the migration began to run, when the
// guest was stopped, and when it was resumed.
func (v *vm) move(b *testing.B, events lifecycles) (begin, stoppedAt, resumedAt time.Time) {
	b.Helper()
	w, from, to, asked := v.w, v.here.host, v.w.other(v.here.host), time.Now()
	from.runs(v.Domain) // from now on the test is connected with a QEMU in its pod
	v.schedule(to, "")
	resumedAt = events.after(w, to, asked, v.Domain, resumed) // so decided does not take CPU from the migration
	stoppedAt = events.after(w, from, asked, v.Domain, suspended)
	if !v.decided() {
		b.Fatalf("not moved: %s", v.whyFailed())
	}
	lines := strings.Split(strings.TrimSpace(from.agent.Log()), "\n")
	for !strings.Contains(lines[len(lines)-1], sending) {
		lines = lines[:len(lines)-1]
	}
	return parsed(w, time.RFC3339Nano, regexp.MustCompile(`time=(\S+)`).FindStringSubmatch(lines[len(lines)-1])[1]), stoppedAt, resumedAt
}

// BenchmarkRelay measures what a relayed GiB costs both agents. The guest writes all the time,
// so its migration does not end before.
func BenchmarkRelay(b *testing.B) {
	w := given(b)
	b.Run("tunnelled", func(b *testing.B) { relayed(b, w) })
	b.Run("pod", func(b *testing.B) { relayed(b, w.of(inPods{})) })
}

func relayed(b *testing.B, w world) {
	b.Helper()
	v := w.guarded(node.Spec{Behaviour: "busy=80"})
	agents := []*node.Process{v.here.agent.Process, w.other(v.here.host).agent.Process}
	var memory, most [2]uint64
	var spent [2]float64
	for n, p := range agents {
		memory[n], spent[n] = anonymous(w, p), processorTime(w, p)
	}
	v.schedule(w.other(v.here.host), `"bandwidthMiB":24`) // less than an emulated guest writes
	passed := uint64(0)
	for passed < 1<<30 {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-w.Context().Done():
			w.Fatalf("interrupted after %d MiB", passed>>20)
		}
		for n, p := range agents {
			most[n] = max(most[n], anonymous(w, p))
		}
		if v.here.state(v.Domain) == "" {
			w.Fatalf("the guest has moved after %d MiB: it writes too little", passed>>20)
		}
		passed = max(passed, v.passed())
	}
	for n, name := range []string{"source", "target"} {
		b.ReportMetric(float64(max(most[n], memory[n])-memory[n])/(1<<20), "MiB-more-"+name)
		b.ReportMetric((processorTime(w, agents[n])-spent[n])*(1<<30)/float64(passed), "cpu-s/GiB-"+name)
	}
	v.patch(`{"migrationState":{"abortRequested":true,"failureReason":"enough has passed"}}`)
	v.decided()
	v.ends()
}

// passed returns how many bytes of the guest have been sent, 0 while that is not known.
func (v *vm) passed() uint64 {
	if q := v.here.inside.of(v.Domain); q != nil {
		var m struct{ RAM struct{ Transferred uint64 } }
		_ = q.ask("query-migrate", &m) // 0 then
		return m.RAM.Transferred
	}
	text, err := v.here.TryVirsh(v.w.Context(), "domjobinfo", v.Domain, "--rawstats")
	if err != nil {
		return 0
	}
	return number(v.w, regexp.MustCompile(`memory_processed: (\d+)`).FindStringSubmatch(text + "memory_processed: 0")[1])
}

// lifecycle starts a virsh that logs the lifecycle events of the node's domains.
func (h *host) lifecycle(w world) *node.Process {
	w.Helper()
	p, err := node.StartProcess(h.Command("virsh", "-c", "qemu:///system", "event", "--event", "lifecycle", "--loop", "--timestamp"), filepath.Join(w.TempDir(), h.name))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(p.Kill)
	return p
}

// happening is an event of a guest, as libvirt and QEMU's monitor call it.
type happening struct{ libvirt, monitor string }

var (
	suspended = happening{"Suspended", "STOP"}
	resumed   = happening{"Resumed", "RESUME"}
)

// lifecycles are what lifecycle has started, by node.
type lifecycles map[*node.Node]*node.Process

// after waits for the first such event after a time and returns when it was.
func (l lifecycles) after(w world, h *host, after time.Time, domain string, what happening) (at time.Time) {
	w.Helper()
	if q := h.inside.of(domain); q != nil {
		at, err := q.happened(what.monitor)
		if err != nil {
			w.Fatalf("QEMU of %s does not say %s: %v", domain, what.monitor, err)
		}
		return at
	}
	event := regexp.MustCompile(`(?m)^(\S+ \S+): event 'lifecycle' for domain '?` + regexp.QuoteMeta(domain) + `'?: ` + what.libvirt)
	node.Eventually(w, soon, func() bool {
		for _, m := range event.FindAllStringSubmatch(l[h.Node].Log(), -1) {
			if at = parsed(w, "2006-01-02 15:04:05.000Z0700", m[1]); at.After(after) {
				return true
			}
		}
		return false
	}, "libvirt says of %s: %s", domain, what.libvirt)
	return at
}

func parsed(w world, layout, text string) time.Time {
	w.Helper()
	t, err := time.Parse(layout, text)
	if err != nil {
		w.Fatal(err)
	}
	return t
}

func number(w world, text string) uint64 {
	w.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func anonymous(w world, p *node.Process) uint64 {
	w.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		w.Fatal(err)
	}
	return number(w, regexp.MustCompile(`RssAnon:\s+(\d+)`).FindStringSubmatch(string(text))[1]) << 10
}

// processorTime returns the process's CPU time in seconds.
func processorTime(w world, p *node.Process) (sum float64) {
	w.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID()))
	if err != nil {
		w.Fatal(err)
	}
	for _, thread := range threads {
		if text, err := os.ReadFile(thread); err == nil { // otherwise the thread has ended
			sum += float64(number(w, strings.Fields(string(text))[0])) / 1e9
		}
	}
	return sum
}

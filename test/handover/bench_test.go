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

// BenchmarkMove is row l of make bench. The agents and virsh in turns move a guest of the
// same kind to and fro, with the same transport. The total time is from the phase Running,
// or from virsh's start, until the guest runs on the target. The downtime is from libvirt's
// event that the guest was stopped on the source until its event that it was resumed on the
// target.
func BenchmarkMove(b *testing.B) {
	b.Run("tunnelled", func(b *testing.B) {
		beside(b, given(b), "--tunnelled", (*host).URI)
	})
	b.Run("native", func(b *testing.B) {
		w, uri := givenNative(b)
		beside(b, w, "--tls", func(to *host) string { return strings.ReplaceAll(uri, "{{address}}", to.address) })
	})
}

// beside moves one guest by the agents and one by virsh. flag and uri are virsh's.
func beside(b *testing.B, w world, flag string, uri func(to *host) string) {
	b.Helper()
	events := map[*node.Node]*node.Process{w.a.Node: w.a.lifecycle(w), w.b.Node: w.b.lifecycle(w)}
	ours := w.guarded(node.Spec{})
	theirs := w.a.Boot(w, node.Spec{Namespace: "nobodys"}) // without a VMI: no agent guards it
	on := w.a
	report := func(b *testing.B, begin time.Time, from, to *host, domain string) {
		b.Helper()
		stopped := eventAfter(w, events[from.Node], begin, domain, "Suspended")
		resumed := eventAfter(w, events[to.Node], stopped, domain, "Resumed")
		b.ReportMetric(resumed.Sub(begin).Seconds(), "s-total")
		b.ReportMetric(resumed.Sub(stopped).Seconds(), "s-downtime")
	}
	for range moves {
		b.Run("agents", func(b *testing.B) {
			from, to := ours.here.host, w.other(ours.here.host)
			asked := time.Now()
			ours.schedule(to, "")
			eventAfter(w, events[to.Node], asked, ours.Domain, "Resumed") // so decided does not take CPU from the migration
			if !ours.decided() {
				b.Fatalf("not moved: %s", ours.whyFailed())
			}
			lines := strings.Split(strings.TrimSpace(from.agent.Log()), "\n")
			for !strings.Contains(lines[len(lines)-1], sending) {
				lines = lines[:len(lines)-1]
			}
			begin := parsed(w, time.RFC3339Nano, regexp.MustCompile(`time=(\S+)`).FindStringSubmatch(lines[len(lines)-1])[1])
			report(b, begin, from, to, ours.Domain)
		})
		b.Run("virsh", func(b *testing.B) {
			from, to := on, w.other(on)
			begin := time.Now()
			from.Virsh(w, "migrate", "--live", "--p2p", flag, theirs.Domain, uri(to))
			report(b, begin, from, to, theirs.Domain)
			on = to
		})
	}
	on.Virsh(w, "destroy", theirs.Domain)
	ours.ends()
}

// BenchmarkRelay measures what a relayed 4 GiB cost the source's agent. The guest writes
// all the time, so its migration does not end before.
func BenchmarkRelay(b *testing.B) {
	w := given(b)
	v := w.guarded(node.Spec{Behaviour: "busy=80"})
	p := v.here.agent.Process
	memory, spent := anonymous(w, p), processorTime(w, p)
	v.schedule(w.b, `"bandwidthMiB":24`) // less than an emulated guest writes
	most, passed := memory, uint64(0)
	for passed < 4<<30 {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-w.Context().Done():
			w.Fatalf("interrupted after %d MiB", passed>>20)
		}
		most = max(most, anonymous(w, p))
		if v.here.state(v.Domain) == "" {
			w.Fatalf("the guest has moved after %d MiB: it writes too little", passed>>20)
		}
		if text, err := v.here.TryVirsh(w.Context(), "domjobinfo", v.Domain, "--rawstats"); err == nil {
			passed = max(passed, number(w, regexp.MustCompile(`memory_processed: (\d+)`).FindStringSubmatch(text + "memory_processed: 0")[1]))
		}
	}
	b.ReportMetric(float64(most-memory)/(1<<20), "MiB-more")
	b.ReportMetric((processorTime(w, p)-spent)*(1<<30)/float64(passed), "cpu-s/GiB")
	v.patch(`{"migrationState":{"abortRequested":true,"failureReason":"4 GiB have passed"}}`)
	v.decided()
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

// eventAfter waits for the first such event after a time and returns when it was.
func eventAfter(w world, p *node.Process, after time.Time, domain, what string) (at time.Time) {
	w.Helper()
	event := regexp.MustCompile(`(?m)^(\S+ \S+): event 'lifecycle' for domain '?` + regexp.QuoteMeta(domain) + `'?: ` + what)
	node.Eventually(w, soon, func() bool {
		for _, m := range event.FindAllStringSubmatch(p.Log(), -1) {
			if at = parsed(w, "2006-01-02 15:04:05.000Z0700", m[1]); at.After(after) {
				return true
			}
		}
		return false
	}, "libvirt says of %s: %s", domain, what)
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

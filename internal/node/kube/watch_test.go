//go:build !unit

package kube

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const finalizer = `,"finalizers":["example.com/kept"]`

func TestAVMIIsSeenAsTheAPIServerHasIt(t *testing.T) {
	r := newRig(t).watching()
	want := r.makeVMI("vm", "", `{"terminationGracePeriodSeconds":42}`)
	if want.Grace != "42" {
		t.Fatal(want)
	}
	r.sees("vm", want)
	n := r.changes("vm")
	r.must("PATCH", r.vmiPath("vm"), `{"spec":{"terminationGracePeriodSeconds":90}}`)
	want.Grace = "90"
	r.sees("vm", want)
	r.toldOfAll("first")
	if r.changes("vm") != n+1 {
		t.Errorf("an edit of the grace period made %d changes", r.changes("vm")-n)
	}
	r.must("PATCH", r.vmiPath("vm"), `{"metadata":{"annotations":{"a":"b"}}}`)
	r.must("PATCH", r.vmiPath("vm"), `{"spec":{"terminationGracePeriodSeconds":null}}`)
	want.Grace = ""
	r.sees("vm", want)
	r.toldOfAll("second")
	if r.changes("vm") != n+2 {
		t.Error("somebody was woken for an annotation")
	}
	r.wantFate("vm", want, grace.FateHere)
}

func TestTheFirstListConcernsAllVMsAlsoAnEmptyOne(t *testing.T) {
	r := newRig(t).watching()
	r.eventually(func() bool { return r.changes("") == 1 }, "nobody was told that all was listed")
	r.proxy.cut()
	r.sees("vm", r.makeVMI("vm", "", `{}`))
	if n := r.changes(""); n != 1 {
		t.Errorf("that was said %d times", n)
	}
}

func TestADeletionKeepsTheTimeOfItsFirstSight(t *testing.T) {
	r := newRig(t).watching()
	was := r.makeVMI("vm", finalizer, `{}`)
	r.sees("vm", was)
	before := mono()
	r.must("DELETE", r.vmiPath("vm"), "")
	r.eventually(func() bool { v := r.VMI(r.name, "vm"); return v.State == grace.VMIDeleting }, "the deletionTimestamp is not seen")
	v := r.VMI(r.name, "vm")
	if v.DeletingAt < before || v.DeletingAt > mono() {
		t.Errorf("seen at %d, deleted after %d", v.DeletingAt, before)
	}
	r.wantFate("vm", was, grace.FateDeleted)
	r.must("PATCH", r.vmiPath("vm"), `{"spec":{"terminationGracePeriodSeconds":7}}`)
	v.Grace = "7"
	r.sees("vm", v)

	r.proxy.cut() // a list or a watch from here must not start over
	r.must("PATCH", r.vmiPath("vm"), `{"spec":{"terminationGracePeriodSeconds":8}}`)
	v.Grace = "8"
	r.sees("vm", v)

	n := r.changes("vm")
	r.must("PATCH", r.vmiPath("vm"), `{"metadata":{"finalizers":null}}`)
	r.misses("vm")
	r.eventually(func() bool { return r.changes("vm") > n }, "nobody was told that it is gone")
	r.wantFate("vm", was, grace.FateDeleted)
}

func TestWhatHappensDuringAnOutageIsSeenAfterIt(t *testing.T) {
	r := newRig(t).watching()
	gone, again, moved := r.makeVMI("gone", "", `{}`), r.makeVMI("again", "", `{}`), r.makeVMI("moved", "", `{}`)
	kept := r.makeVMI("kept", "", `{}`)
	for name, v := range map[string]grace.VMI{"gone": gone, "again": again, "moved": moved, "kept": kept} {
		r.sees(name, v)
	}
	r.proxy.breaks(hangUp)
	r.eventually(func() bool { return !r.Up() }, "an outage is not noticed")

	r.must("DELETE", r.vmiPath("gone"), "")
	r.must("DELETE", r.vmiPath("again"), "")
	renewed := r.makeVMI("again", "", `{}`)
	r.must("PATCH", r.vmiPath("moved"), `{"metadata":{"labels":{"kubevirt.io/nodeName":"another"}}}`)
	r.sees("gone", gone) // nothing newer is known
	r.wantFate("gone", gone, grace.FateUnknown)

	r.proxy.recover()
	begin := time.Now()
	r.eventually(r.Up, "the return is not noticed")
	t.Logf("the return was noticed after %v", time.Since(begin))
	r.misses("gone")
	r.misses("moved")
	r.sees("again", renewed)
	r.sees("kept", kept)
	r.wantFate("gone", gone, grace.FateDeleted)
	r.wantFate("again", again, grace.FateReplaced)
	r.wantFate("again", renewed, grace.FateHere)
	r.wantFate("moved", moved, grace.FateMoved)
	r.wantFate("kept", kept, grace.FateHere)
	if n := strings.Count(r.logged(), "level=WARN"); n != 1 {
		t.Errorf("%d lines about one outage:\n%s", n, r.logged())
	}
}

func TestAWatchThatFellTooFarBehindListsAgain(t *testing.T) {
	r := newRig(t).watching()
	gone, kept := r.makeVMI("gone", "", `{}`), r.makeVMI("kept", "", `{}`)
	r.sees("gone", gone)
	r.sees("kept", kept)
	lists := r.proxy.asked("GET /apis/kubevirt.io/v1/virtualmachineinstances?labelSelector")
	r.proxy.breaks(hangUp)
	r.eventually(func() bool { return !r.Up() }, "an outage is not noticed")
	r.must("DELETE", r.vmiPath("gone"), "")
	renewed := r.makeVMI("gone", "", `{}`)
	// A new server remembers nothing of what happened before it.
	r.api.Kill()
	if err := r.api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.proxy.recover()
	r.eventually(r.Up, "the return is not noticed")
	r.sees("gone", renewed)
	r.sees("kept", kept)
	if n := r.proxy.asked("GET /apis/kubevirt.io/v1/virtualmachineinstances?labelSelector"); n == lists {
		t.Error("nothing was listed; this test shows nothing")
	}
	r.wantFate("gone", gone, grace.FateReplaced)
	r.wantFate("gone", renewed, grace.FateHere)

	// The same, told by the server's 410.
	r.proxy.breaksFor(func(q *http.Request) bool { return q.URL.Query().Get("watch") != "" }, bareStatus(http.StatusGone, "Expired"))
	r.proxy.cut()
	r.must("DELETE", r.vmiPath("kept"), "")
	r.misses("kept")
	r.proxy.recover()
	late := r.makeVMI("late", "", `{}`)
	r.sees("late", late)
}

func TestNothingAboutOtherNodesIsSent(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		r.makeVMIOn("another", fmt.Sprintf("other-%d", i), `,"annotations":{"padding":"`+strings.Repeat("x", 1000)+`"}`, `{}`)
		r.makePod(fmt.Sprintf("otherpod-%d", i), podOnServer{node: "another", vmi: "x"})
	}
	r.makePod("nolauncher", podOnServer{vmi: "x", label: "another"})
	r.watching()
	bytes := len(r.proxy.sent("/v1/virtualmachineinstances")) + len(r.proxy.sent("/pods")) // without the CRD
	t.Logf("lists of nothing on this node, 20 VMIs and pods on another: %d bytes", bytes)
	r.sees("mine", r.makeVMI("mine", "", `{}`))
	r.must("PATCH", r.vmiPath("other-1"), `{"spec":{"terminationGracePeriodSeconds":3}}`)
	r.must("DELETE", r.vmiPath("other-2"), "")
	r.makeVMIOn("another", "other-new", "", `{}`)
	r.sees("mine2", r.makeVMI("mine2", "", `{}`)) // the watch is past all that
	text := r.proxy.sent("/")
	if strings.Contains(text, "other-") || strings.Contains(text, "otherpod-") || strings.Contains(text, "nolauncher") {
		t.Errorf("the Source was sent what does not concern its node:\n%s", text)
	}
	if bytes > 2000 {
		t.Errorf("%d bytes for nothing", bytes)
	}
}

func TestAStoredVMICostsLessThanAKiB(t *testing.T) {
	const n = 5_000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var took []int64
	for range 3 { // garbage of other tests may be freed meanwhile
		source := &Source{node: "node", now: mono}
		s := &store[vmi]{strip: source.stripVMI, notify: func(_, _ vmi) {}}
		for i := range n {
			o := decodeVMI(t, fmt.Sprintf(`{"metadata":{"namespace":"tenant-%d","name":"a-virtual-machine-with-a-name-%d","uid":"11111111-2222-3333-4444-%012d",
			"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"kubevirt.io/nodeName":"node"},"annotations":{"padding":%q}},
			"spec":{"terminationGracePeriodSeconds":30,"domain":{"padding":%[4]q}}}`, i%100, i, i, strings.Repeat("x", 2000)))
			if err := s.Update(o); err != nil {
				t.Fatal(err)
			}
		}
		with := heap()
		if _, ok := s.get(key{"tenant-1", "a-virtual-machine-with-a-name-1"}); !ok {
			t.Fatal("it is not there")
		}
		s.byName = nil
		took = append(took, (with-heap())/n)
	}
	t.Logf("%d bytes per VMI", took)
	if least := slices.Min(took); least <= 0 || least >= 1024 {
		t.Errorf("%d bytes per VMI", took)
	}
}

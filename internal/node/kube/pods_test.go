//go:build !unit

package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func decodeVMI(t *testing.T, text string) *object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return &o
}

// podOnServer is what differs between launcher pods.
type podOnServer struct {
	node, vmi, label string
	grace            int
}

// makePod makes a launcher pod, by default on this node, and returns its UID.
func (r *rig) makePod(name string, s podOnServer) string {
	r.Helper()
	if s.node == "" {
		s.node = r.name
	}
	if s.label == "" {
		s.label = "virt-launcher"
	}
	if s.grace == 0 {
		s.grace = 60
	}
	a := r.must("POST", strings.TrimSuffix(r.podPath(""), "/"), fmt.Sprintf(`{"metadata":{"name":%q,
		"labels":{"kubevirt.io":%q,"kubevirt.io/created-by":"uid-of-%s"},"annotations":{"kubevirt.io/domain":%q}},
		"spec":{"nodeName":%q,"terminationGracePeriodSeconds":%d,"automountServiceAccountToken":false,"containers":[{"name":"compute","image":"none"}]}}`,
		name, s.label, name, s.vmi, s.node, s.grace))
	var o object
	if err := json.Unmarshal(a.body, &o); err != nil {
		r.Fatal(err)
	}
	return string(o.UID)
}

// pod waits for the only launcher pod of a VMI to satisfy cond.
func (r *rig) pod(vm string, cond func(grace.Pod) bool) grace.Pod {
	r.Helper()
	var last []grace.Pod
	r.eventually(func() bool { last = r.Pods(r.name, vm); return len(last) == 1 && cond(last[0]) }, "the pod of %s is not as expected", vm)
	return last[0]
}

func any1(grace.Pod) bool { return true }

func TestALauncherPodIsFoundByItsVMI(t *testing.T) {
	r := newRig(t).watching()
	uid := r.makePod("launcher", podOnServer{vmi: "vm"})
	p := r.pod("vm", any1)
	if p.UID != uid || p.VMI != "uid-of-launcher" || p.GracePeriod != time.Minute || p.Done || p.Deleting ||
		p.KillAt != grace.Never || p.DeletingAt != grace.Never || p.Created.IsZero() {
		t.Errorf("%+v", p)
	}
	r.eventually(func() bool { return r.changes("vm") > 0 }, "nobody was told")
	r.must("PATCH", r.podPath("launcher")+"/status", `{"status":{"phase":"Failed"}}`)
	r.pod("vm", func(p grace.Pod) bool { return p.Done })

	// Two pods at once, as in a migration back to where it began. The oldest comes first.
	second := r.makePod("second", podOnServer{vmi: "vm"})
	r.eventually(func() bool { p := r.Pods(r.name, "vm"); return len(p) == 2 }, "the second is not seen")

	// A tenant may write the annotation. (An empty one counts as none:
	// TestWhoseLauncherAPodIs.)
	n := r.changes("vm")
	r.must("PATCH", r.podPath("second"), `{"metadata":{"annotations":{"kubevirt.io/domain":"vm2"}}}`)
	if p := r.pod("vm2", any1); p.UID != second {
		t.Errorf("%+v", p)
	}
	r.eventually(func() bool { return r.changes("vm") > n && r.changes("vm2") > 0 }, "both VMIs are concerned when a pod changes its mind")
	for _, evil := range []string{"../../etc", "a/b", "A", "-x", "a\u0000b", strings.Repeat("a", 300), strings.Repeat("b", 100_000)} {
		text, _ := json.Marshal(evil)
		r.must("PATCH", r.podPath("second"), `{"metadata":{"annotations":{"kubevirt.io/domain":`+string(text)+`}}}`)
	}
	r.eventually(func() bool { return len(r.Pods(r.name, "vm2")) == 0 }, "it still belongs to vm2")
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.changed, ""); len(r.changed) != 2 {
		t.Errorf("names that were told: %v", r.changed)
	}
}

func TestKubeletsKillIsTheEarliestThatAnyDeletionMeant(t *testing.T) {
	r := newRig(t).watching()
	r.makePod("launcher", podOnServer{vmi: "vm", grace: 600})
	r.pod("vm", any1)
	before := mono()
	r.must("DELETE", r.podPath("launcher"), `{"gracePeriodSeconds":500}`)
	p := r.pod("vm", func(p grace.Pod) bool { return p.Deleting })
	if p.DeletingAt < before || p.KillAt != p.DeletingAt.Add(500*time.Second) || p.DeletionGrace != 500*time.Second || p.GracePeriod != 600*time.Second {
		t.Errorf("%+v", p)
	}
	// An update unrelated to the deletion changes no time.
	r.must("PATCH", r.podPath("launcher"), `{"metadata":{"annotations":{"a":"b"}}}`)
	r.must("PATCH", r.podPath("launcher")+"/status", `{"status":{"phase":"Running"}}`)
	second := mono()
	r.must("DELETE", r.podPath("launcher"), `{"gracePeriodSeconds":5}`)
	q := r.pod("vm", func(p grace.Pod) bool { return p.DeletionGrace == 5*time.Second })
	if q.DeletingAt != p.DeletingAt || q.KillAt < second.Add(5*time.Second) || q.KillAt > mono().Add(5*time.Second) {
		t.Errorf("%+v after %+v", q, p)
	}
	r.proxy.cut()
	r.must("PATCH", r.podPath("launcher"), `{"metadata":{"annotations":{"a":"c"}}}`)
	r.makePod("mark", podOnServer{vmi: "mark"})
	r.pod("mark", any1)
	if again := r.pod("vm", any1); again != q {
		t.Errorf("a lost connection moved %+v to %+v", q, again)
	}
	r.must("DELETE", r.podPath("launcher"), `{"gracePeriodSeconds":0}`)
	r.eventually(func() bool { return len(r.Pods(r.name, "vm")) == 0 }, "the pod is still there")
}

func TestObjectsThatCannotBeOnThisNodeAreIgnored(t *testing.T) {
	// A proxy may ignore selectors, and a tenant may guess names. What is stored becomes
	// part of paths and domain names.
	good := `"uid":"u-1","creationTimestamp":"2026-01-02T03:04:05Z"`
	s := &Source{node: "node", now: mono}
	for name, text := range map[string]string{
		"other node":    `{"metadata":{"namespace":"ns","name":"vm","labels":{"kubevirt.io/nodeName":"other"},` + good + `}}`,
		"no node":       `{"metadata":{"namespace":"ns","name":"vm",` + good + `}}`,
		"bad name":      `{"metadata":{"namespace":"ns","name":"../vm","labels":{"kubevirt.io/nodeName":"node"},` + good + `}}`,
		"bad namespace": `{"metadata":{"namespace":"a_b","name":"vm","labels":{"kubevirt.io/nodeName":"node"},` + good + `}}`,
		"bad UID":       `{"metadata":{"namespace":"ns","name":"vm","labels":{"kubevirt.io/nodeName":"node"},"uid":"../x"}}`,
		"no UID":        `{"metadata":{"namespace":"ns","name":"vm","labels":{"kubevirt.io/nodeName":"node"}}}`,
	} {
		if is := s.stripVMI(decodeVMI(t, text), vmi{}); is != (vmi{}) {
			t.Errorf("%s: %+v", name, is)
		}
	}
	if is := s.stripVMI(decodeVMI(t, `{"metadata":{"namespace":"ns","name":"vm","labels":{"kubevirt.io/nodeName":"node"},`+good+`}}`), vmi{}); is.UID != "u-1" {
		t.Errorf("%+v", is)
	}
}

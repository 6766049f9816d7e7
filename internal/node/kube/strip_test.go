package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestWhoseLauncherAPodIs(t *testing.T) {
	s := &Source{node: "n", now: func() grace.Mono { return 0 }}
	for name, c := range map[string]struct {
		annotations map[string]string
		want        key
	}{
		"by its annotation":    {map[string]string{kubevirt.DomainAnnotation: "vm"}, key{"ns", "vm"}},
		"by its own name":      {nil, key{"ns", "virt-launcher-x"}},
		"by an empty one":      {map[string]string{kubevirt.DomainAnnotation: ""}, key{"ns", "virt-launcher-x"}},
		"a name that is none":  {map[string]string{kubevirt.DomainAnnotation: "../x"}, key{}},
		"another's annotation": {map[string]string{"kubevirt.io/domainx": "vm"}, key{"ns", "virt-launcher-x"}},
	} {
		o := &object{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "virt-launcher-x", UID: "u-1",
				Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp}, Annotations: c.annotations,
			},
			Spec: json.RawMessage(`{"nodeName":"n","priority":-7}`),
		}
		got := s.stripPod(o, pod{})
		if got.of != c.want || got.of != (key{}) && got.Priority != -7 {
			t.Errorf("%s: %v of priority %d, want %v", name, got.of, got.Priority, c.want)
		}
	}
}

func TestALauncherThatIsAStaticPodIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	s := &Source{node: "node-a", log: slog.New(slog.NewTextHandler(&log, nil)), changed: func(string, string) {}, now: func() grace.Mono { return 0 }}
	pods := &store[pod]{strip: s.stripPod, notify: s.podChanged}
	for n, annotations := range []string{`"kubevirt.io/domain":"vm"`, `"kubevirt.io/domain":"vm","kubernetes.io/config.mirror":"3f"`, `"kubevirt.io/domain":"vm","kubernetes.io/config.mirror":"3f","x":"y"`} {
		var o object
		text := `{"metadata":{"namespace":"ns","name":"virt-launcher-vm","uid":"uid-1","labels":{"kubevirt.io":"virt-launcher"},"annotations":{` + annotations + `}},"spec":{"nodeName":"node-a"}}`
		kit.Must(t, json.Unmarshal([]byte(text), &o))
		kit.Must(t, pods.Update(&o))
		if got, want := strings.Count(log.String(), "static pod"), min(n, 1); got != want {
			t.Errorf("%s: said %d times, want %d", annotations, got, want)
		}
	}
}

func TestForWhatALauncherIsHeld(t *testing.T) {
	const both = "PreemptionByScheduler,DeletionByTaintManager"
	annotated := func(holdFor, reserve, allowance string) map[string]string {
		return map[string]string{kubevirt.DomainAnnotation: "vm", evacuation.HoldForAnnotation: holdFor, evacuation.ReserveAnnotation: reserve, evacuation.AllowanceAnnotation: allowance}
	}
	condition := func(kind, status, reason string) string {
		return fmt.Sprintf(`{"conditions":[{"type":"Ready","status":"True"},{"type":%q,"status":%q,"reason":%q}]}`, kind, status, reason)
	}
	preempted := condition("DisruptionTarget", "True", "PreemptionByScheduler")
	deleted, grace200 := metav1.Now(), int64(200)
	kill := metav1.NewTime(deleted.Add(200 * time.Second))
	preemptedAt := func(sinceDeletion time.Duration) string {
		return fmt.Sprintf(`{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler","lastTransitionTime":%q}]}`,
			deleted.Add(sinceDeletion).UTC().Format(time.RFC3339))
	}
	s := &Source{node: "n", now: func() grace.Mono { return 0 }}
	type held struct {
		holdable           bool
		reason             grace.Cause
		reserve, allowance time.Duration
	}
	for name, c := range map[string]struct {
		annotations map[string]string
		status      string
		was         grace.Cause // seen before, of the same pod
		want        held
	}{
		"preempted":              {annotated(both, "50", "150"), preempted, "", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"tainted away":           {annotated(both, "50", "150"), condition("DisruptionTarget", "True", "DeletionByTaintManager"), "", held{true, "DeletionByTaintManager", 50 * time.Second, 150 * time.Second}},
		"deleted":                {annotated(both, "50", "150"), `{}`, "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"no allowance":           {annotated(both, "50", ""), preempted, "", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"nothing but the reason": {annotated(both, "", ""), preempted, "", held{true, "PreemptionByScheduler", 0, 150 * time.Second}},
		"evicted":                {annotated(both, "50", "150"), condition("DisruptionTarget", "True", "EvictionByEvictionAPI"), "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"evicted afterwards":     {annotated(both, "50", "150"), condition("DisruptionTarget", "True", "EvictionByEvictionAPI"), "PreemptionByScheduler", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"not any more":           {annotated(both, "50", "150"), condition("DisruptionTarget", "False", "PreemptionByScheduler"), "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"another condition":      {annotated(both, "50", "150"), condition("Ready", "True", "PreemptionByScheduler"), "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"for the other reason":   {annotated("DeletionByTaintManager", "50", "150"), preempted, "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"no reason of ours":      {annotated("TerminationByKubelet", "50", "150"), condition("DisruptionTarget", "True", "TerminationByKubelet"), "", held{}},
		"webhook was down":       {map[string]string{kubevirt.DomainAnnotation: "vm"}, preempted, "", held{}},
		"nonsense":               {annotated(both, "-1", "150"), preempted, "", held{}},
		"nonsense as allowance":  {annotated(both, "50", "soon"), preempted, "", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"no time to move":        {annotated(both, "50", "0"), preempted, "", held{false, "PreemptionByScheduler", 50 * time.Second, 0}},
		"just preempted":         {annotated(both, "50", "150"), preemptedAt(-time.Second), "", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"preempted long before":  {annotated(both, "50", "150"), preemptedAt(-95 * time.Second), "", held{true, "", 50 * time.Second, 150 * time.Second}},
		"latched by then":        {annotated(both, "50", "150"), preemptedAt(-95 * time.Second), "PreemptionByScheduler", held{true, "PreemptionByScheduler", 50 * time.Second, 150 * time.Second}},
		"status of another kind": {annotated(both, "50", "150"), `[1]`, "", held{true, "", 50 * time.Second, 150 * time.Second}},
	} {
		o := &object{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "virt-launcher-x", UID: "u-1", DeletionTimestamp: &kill, DeletionGracePeriodSeconds: &grace200,
				Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp}, Annotations: c.annotations,
			},
			Spec: json.RawMessage(`{"nodeName":"n"}`), Status: json.RawMessage(c.status),
		}
		was := pod{Pod: grace.Pod{UID: "u-1", Deleting: c.was != "", HoldReason: c.was}}
		got := s.stripPod(o, was).Pod
		if is := (held{got.Holdable, got.HoldReason, got.Reserve, got.Allowance}); is != c.want {
			t.Errorf("%s: %+v, want %+v", name, is, c.want)
		}
	}
}

func TestAVMIIsMarkedToLeaveThisNode(t *testing.T) {
	s := &Source{node: "n", now: func() grace.Mono { return 0 }}
	for status, want := range map[string]bool{
		`{"evacuationNodeName":"n"}`: true, `{"evacuationNodeName":"other"}`: false, `{}`: false, `{"evacuationNodeName":7}`: false,
	} {
		o := &object{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u-1", Labels: map[string]string{kubevirt.NodeNameLabel: "n"}},
			Status:     json.RawMessage(status),
		}
		if got := s.stripVMI(o, vmi{}).Marked; got != want {
			t.Errorf("%s: %v", status, got)
		}
	}
}

func TestWhatIsKnownOfADomainsLauncherPods(t *testing.T) {
	s := &Source{node: "n", now: func() grace.Mono { return 0 }, changed: func(string, string) {}}
	s.pods = &store[pod]{strip: s.stripPod, notify: s.podChanged}
	launcher := func(uid, job string) *object {
		return &object{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "l-" + uid, UID: types.UID(uid),
				Labels:      map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.MigrationJobLabel: job},
				Annotations: map[string]string{kubevirt.DomainAnnotation: "vm"},
			},
			Spec: json.RawMessage(`{"nodeName":"n"}`),
		}
	}
	if s.None("ns_vm") {
		t.Error("none, before they were listed")
	}
	kit.Must(t, s.pods.Replace(nil, ""))
	if !s.None("ns_vm") {
		t.Error("there is one in an empty list")
	}
	kit.Must(t, s.pods.Update(launcher("u-1", "")))
	kit.Must(t, s.pods.Update(launcher("u-2", "m-1")))
	if s.None("ns_vm") || !s.None("ns_other") {
		t.Error("they are not those of their VM")
	}
	for uid, want := range map[string]bool{"u-1": false, "u-2": true, "u-3": false} {
		if got := s.Target("ns_vm", uid); got != want {
			t.Errorf("%s is a target: %v", uid, got)
		}
	}
	if s.Target("ns_other", "u-2") {
		t.Error("it is another VM's")
	}
}

// Given a VMI whose launcher has ended, and a pod made anew by the same file, without a UID. Then the
// pod is a VM by itself, and none that the VMI's deletion ends. A pod that nobody has linked yet is
// that of the VMI that waits for it.
func TestAPodMadeAfterAVMIsEndIsNotThatVMIs(t *testing.T) {
	const made = `"metadata":{"namespace":"ns","name":"vm","uid":"uid-1","labels":{"kubevirt.io/nodeName":"n"}%s},"status":%s`
	for name, c := range map[string]struct {
		deleted, status string
		want            grace.VMIState
	}{
		"it has ended":           {"", `{"phase":"Succeeded"}`, grace.VMIAbsent},
		"it has had its one":     {"", `{"phase":"Running","vmgraceLauncher":{"pod":"p","podUID":"pod-0"}}`, grace.VMIAbsent},
		"it was deleted before":  {`,"deletionTimestamp":"2026-01-01T00:00:00Z"`, `{}`, grace.VMIAbsent},
		"it waits":               {"", `{"phase":"Pending"}`, grace.VMIPresent},
		"it was deleted later":   {`,"deletionTimestamp":"2026-01-01T00:00:09Z"`, `{}`, grace.VMIPresent}, // until its CRD is known
		"the pod is its, by UID": {"", `{"phase":"Failed"}`, grace.VMIPresent},
	} {
		told := 0
		s := New(Config{Node: "n", Now: func() grace.Mono { return 1 }, Changed: func(string, string) { told++ }, Log: slog.New(slog.DiscardHandler)})
		var vmi, pod object
		kit.Must(t, json.Unmarshal([]byte(`{`+fmt.Sprintf(made, "", `{"phase":"Running"}`)+`}`), &vmi))
		kit.Must(t, s.vmis.Add(&vmi))
		label := ""
		if strings.HasSuffix(name, "UID") {
			label = `,"kubevirt.io/created-by":"uid-1"`
		}
		kit.Must(t, json.Unmarshal([]byte(`{"metadata":{"namespace":"ns","name":"virt-launcher-vm","uid":"pod-1","creationTimestamp":"2026-01-01T00:00:05Z",
			"labels":{"kubevirt.io":"virt-launcher"`+label+`},"annotations":{"kubevirt.io/domain":"vm"}},"spec":{"nodeName":"n"}}`), &pod))
		kit.Must(t, s.pods.Add(&pod))
		before := told
		vmi = object{}
		kit.Must(t, json.Unmarshal([]byte(`{`+fmt.Sprintf(made, c.deleted, c.status)+`}`), &vmi))
		kit.Must(t, s.vmis.Update(&vmi))
		if got := s.VMI("ns", "vm").State; got != c.want || got == grace.VMIAbsent && told == before {
			t.Errorf("%s: state %d, want %d, told %d times", name, got, c.want, told-before)
		}
	}
}

// Given a VM that has moved here, and a file that is applied again and states its former node. Then it
// is here all the same: otherwise its agent would judge it no longer.
func TestALabelOfAFormerNodeMovesNoVM(t *testing.T) {
	for _, c := range []struct {
		label, status string
		want          grace.Fate
	}{
		{"n", `{}`, grace.FateHere},
		{"n", `{"nodeName":"other"}`, grace.FateHere}, // the label follows
		{"other", `{"nodeName":"n"}`, grace.FateHere},
		{"other", `{"nodeName":"other"}`, grace.FateMoved},
		{"other", `{}`, grace.FateMoved},
		{"other", `{"nodeName":"other","vmgraceFencedNodes":["n"]}`, grace.FateFenced},
	} {
		o := &object{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{kubevirt.NodeNameLabel: c.label}}, Status: json.RawMessage(c.status)}
		if got := (&Source{node: "n"}).where(o); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.label, c.status, got, c.want)
		}
	}
	kubeVirts := &object{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{kubevirt.NodeNameLabel: "other"}}, Status: json.RawMessage(`{"nodeName":"n"}`)}
	if got := (&Source{node: "n", moves: func(string, string) {}}).where(kubeVirts); got != grace.FateMoved {
		t.Errorf("KubeVirt's own label, which goes before the status: %q", got)
	}
}

// What a VMI states reaches the rules as it was written: one that is no number is invalid, never 0.
func TestWhateverAVMIStatesIsReadAsItIs(t *testing.T) {
	for spec, want := range map[string]string{
		`{"terminationGracePeriodSeconds":"30"}`:                               `"30"`,
		`{"terminationGracePeriodSeconds":1.5}`:                                `1.5`,
		`{"terminationGracePeriodSeconds":-3}`:                                 `-3`,
		`{"terminationGracePeriodSeconds":0}`:                                  `0`,
		`{"terminationGracePeriodSeconds":9223372036854775807}`:                `9223372036854775807`,
		`{"terminationGracePeriodSeconds":1e+30}`:                              `1e+30`,
		`{"terminationGracePeriodSeconds":null}`:                               ``,
		`{"terminationGracePeriodSeconds":{"a":[1,2]}}`:                        `{"a":[1,2]}`,
		`{"terminationGracePeriodSeconds":[]}`:                                 `[]`,
		`{"terminationGracePeriodSeconds":"` + strings.Repeat("ä", 500) + `"}`: `"` + strings.Repeat("ä", 31),
		`{"TerminationGracePeriodSeconds":5}`:                                  ``,
		`null`:                                                                 ``,
		`"text"`:                                                               ``,
		`[1,"a",{}]`:                                                           ``,
		`{"terminationGracePeriodSeconds":11,"domain":{}}`:                     `11`,
	} {
		got := statedGrace(json.RawMessage(spec))
		if _, err := grace.ParseSeconds(got); got != want || (err == nil) != (want == "0" || want == "11") {
			t.Errorf("%.60s: %q, %v; want %q", spec, got, err, want)
		}
	}
}

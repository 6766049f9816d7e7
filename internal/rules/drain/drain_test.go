package drain

import (
	"strings"
	"testing"
	"time"
)

func TestChooseIsKubectls(t *testing.T) {
	now := time.Unix(1000, 0)
	all := Options{Force: true, IgnoreDaemonSets: true, DeleteEmptyDir: true}
	for name, c := range map[string]struct {
		pod    Pod
		opts   Options
		drain  bool
		text   string
		refuse bool
	}{
		"managed":                  {Pod{Controller: "c"}, Options{}, true, "", false},
		"unmanaged":                {Pod{}, Options{}, false, "declare no controller (use --force", true},
		"unmanaged, forced":        {Pod{}, all, true, "deleting Pods that declare no controller", false},
		"emptyDir":                 {Pod{Controller: "c", EmptyDir: true}, Options{}, false, "local storage (use --delete-emptydir-data", true},
		"emptyDir allowed":         {Pod{Controller: "c", EmptyDir: true}, all, true, "deleting Pods with local storage", false},
		"ended":                    {Pod{Ended: true, EmptyDir: true}, Options{}, true, "", false},
		"mirror":                   {Pod{Mirror: true}, Options{}, false, "", false},
		"DaemonSet":                {Pod{Controller: "c", DaemonSet: DaemonSetThere}, Options{}, false, "use --ignore-daemonsets", true},
		"DaemonSet ignored":        {Pod{Controller: "c", DaemonSet: DaemonSetThere}, all, false, "ignoring DaemonSet-managed", false},
		"DaemonSet, ended":         {Pod{Controller: "c", DaemonSet: DaemonSetThere, Ended: true}, Options{}, true, "", false},
		"DaemonSet gone":           {Pod{Controller: "c", DaemonSet: DaemonSetGone, DaemonSetError: "not found"}, Options{IgnoreDaemonSets: true}, false, "not found", true},
		"DaemonSet gone, forced":   {Pod{Controller: "c", DaemonSet: DaemonSetGone, DaemonSetError: "not found"}, all, true, "not found", false},
		"DaemonSet unknown":        {Pod{Controller: "c", DaemonSet: DaemonSetUnknown, DaemonSetError: "hm"}, all, false, "hm", true},
		"deleted long ago":         {Pod{Controller: "c", DeletedAt: now.Add(-time.Minute)}, Options{SkipDeletedSeconds: 30}, false, "", false},
		"deleted lately":           {Pod{Controller: "c", DeletedAt: now.Add(-time.Second)}, Options{SkipDeletedSeconds: 30}, true, "", false},
		"label Skip":               {Pod{Policy: Skip}, Options{}, false, "skipping", false},
		"label WaitCompleted":      {Pod{Policy: WaitCompleted}, Options{}, true, "", false},
		"WaitCompleted, DaemonSet": {Pod{Policy: WaitCompleted, DaemonSet: DaemonSetThere}, all, false, "ignoring", false},
		"a label of another word":  {Pod{Policy: "skip"}, Options{}, false, "declare no controller", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := Choose(&c.pod, &c.opts, now)
			if got.Drain != c.drain || (got.Refusal != "") != c.refuse || !strings.Contains(got.Warning+got.Refusal, c.text) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestOnlyForcePowerOffCutsAVMsGracePeriod(t *testing.T) {
	vm := Pod{Launcher: true, Grace: 3 * time.Minute}
	for name, c := range map[string]struct {
		pod  Pod
		opts Options
		want int64 // -1: the pod's own
	}{
		"default":          {vm, Options{GraceSeconds: -1}, -1},
		"a VM, 0":          {vm, Options{GraceSeconds: 0, Force: true}, -1},
		"a VM, less":       {vm, Options{GraceSeconds: 30}, -1},
		"a VM, more":       {vm, Options{GraceSeconds: 300}, 300},
		"a VM, powered":    {vm, Options{PowerOff: true}, 0},
		"a VM that ended":  {Pod{Launcher: true, Ended: true, Grace: time.Minute}, Options{}, 0},
		"another pod":      {Pod{Grace: time.Minute}, Options{}, 0},
		"a disk of a VM":   {Pod{Hotplug: true, Grace: time.Minute}, Options{Force: true}, -1},
		"power off, unset": {vm, Options{GraceSeconds: -1, PowerOff: true}, -1},
	} {
		got := int64(-1)
		if g := c.opts.Grace(&c.pod); g != nil {
			got = *g
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	const budget = "Cannot evict pod as it would violate the pod's disruption budget."
	blocksForever := []Budget{{Name: "a/web", Owner: "Deployment web", Observed: true, Desired: 2, Expected: 2}}
	full := []Budget{{Name: "a/web", Observed: true, Desired: 1, Expected: 2}}
	never := []Budget{{Name: "a/web", SyncFailed: "pods does not have a scale subresource"}}
	failing := []Budget{{Name: "a/web", Expected: 3, Desired: 2, SyncFailed: "timeout", SyncFailedFor: 59 * time.Second}}
	failed := []Budget{{Name: "a/web", Expected: 3, Desired: 2, SyncFailed: "no scale", SyncFailedFor: time.Minute}}
	const several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
	ofVM := []Budget{{Name: "a/vm", OfVM: true, Observed: true, Desired: 1, Expected: 1}}
	for name, c := range map[string]struct {
		response Response
		budgets  []Budget
		vm       *VM
		want     Verdict
		text     string
	}{
		"gone":                  {Response{Code: 404, Text: "not found"}, nil, nil, Accepted, "gone"},
		"evacuation":            {Response{Code: 429, Text: `admission webhook denied the request: Eviction triggered evacuation of VMI "a/vm"`}, ofVM, nil, Moving, "moved"},
		"not migratable":        {Response{Code: 429, Text: "VMI vm is configured with an eviction strategy but is not live-migratable"}, nil, &VM{NotMigratable: "host device"}, Failed, "live-migratable: host device"},
		"evacuation, stays":     {Response{Code: 429, Text: `Eviction triggered evacuation of VMI "a/vm"`}, ofVM, &VM{Name: "a/vm", Marked: true, Stuck: "no strategy"}, Failed, "a/vm cannot be moved: no strategy"},
		"not judged yet":        {Response{Code: 429, Text: "kubevirt failed getting the vmi: it is not known yet whether vm is live-migratable"}, nil, &VM{Name: "a/vm"}, Blocked, "not known yet"},
		"never computed":        {Response{Code: 429, Text: budget}, never, nil, Failed, "a/web can never allow an eviction (SyncFailed): pods does not have a scale"},
		"not computed now":      {Response{Code: 429, Text: budget}, failing, nil, Blocked, "waits for PodDisruptionBudget a/web"},
		"not computed for long": {Response{Code: 429, Text: budget}, failed, nil, Failed, "SyncFailed): no scale"},
		"a moving VM, never":    {Response{Code: 429, Text: budget}, never, &VM{Name: "a/vm", Marked: true}, Moving, "moved"},
		"a moving VM, several":  {Response{Code: 500, Text: several}, append(full, ofVM...), &VM{Name: "a/vm", Marked: true}, Moving, "moved"},
		"a VM, several":         {Response{Code: 500, Text: several}, append(full, ofVM...), &VM{Name: "a/vm"}, Blocked, "a/web, PodDisruptionBudget a/vm"},
		"VM unknown, several":   {Response{Code: 500, Text: several}, append(full, ofVM...), nil, Blocked, "a/vm"},
		"stuck VM, several":     {Response{Code: 500, Text: several}, append(full, ofVM...), &VM{Name: "a/vm", Marked: true, Stuck: "host device"}, Failed, "host device"},
		"VM None, several":      {Response{Code: 500, Text: several}, full, &VM{Name: "a/vm"}, Failed, "several"},
		"hotplug":               {Response{Code: 429, Text: "cannot evict hotplug pod x associated with running vmi vm"}, nil, nil, Blocked, "goes with it"},
		"never":                 {Response{Code: 429, Text: budget}, blocksForever, nil, Failed, "a/web of Deployment web"},
		"later":                 {Response{Code: 429, Text: budget}, full, nil, Blocked, "waits for PodDisruptionBudget a/web"},
		"not observed":          {Response{Code: 429, Text: budget}, []Budget{{Name: "a/web", Desired: 2, Expected: 2}}, nil, Blocked, "a/web"},
		"a VM's own":            {Response{Code: 429, Text: budget}, ofVM, &VM{Name: "a/vm", Marked: true}, Moving, ""},
		"a VM's own, no mark":   {Response{Code: 429, Text: budget}, ofVM, &VM{Name: "a/vm"}, Blocked, "a/vm"},
		"a VM that stays":       {Response{Code: 429, Text: budget}, ofVM, &VM{Name: "a/vm", Marked: true, Stuck: "no strategy"}, Failed, "a/vm cannot be moved: no strategy"},
		"moved":                 {Response{Code: 429, Text: "VMI a/vm has moved to node b: this pod ends by itself"}, ofVM, nil, Moving, "its VM has moved"},
		"moved, by its budget":  {Response{Code: 429, Text: budget}, ofVM, &VM{Name: "a/vm", Moved: true}, Moving, "its VM has moved"},
		"moved, several":        {Response{Code: 500, Text: several}, append(full, ofVM...), &VM{Name: "a/vm", Moved: true}, Moving, "its VM has moved"},
		"moved, KubeVirt's":     {Response{Code: 429, Text: "Evacuation in progress: Live migrating VMI vm"}, nil, &VM{Name: "a/vm", Moved: true}, Moving, "its VM has moved"},
		"KubeVirt's second":     {Response{Code: 429, Text: "Evacuation in progress: Live migrating VMI vm"}, nil, &VM{Name: "a/vm", Marked: true}, Moving, "to be moved"},
		"several":               {Response{Code: 500, Text: several}, append(full, blocksForever...), nil, Failed, "PodDisruptionBudget a/web, PodDisruptionBudget a/web of"},
		"server is busy":        {Response{Code: 429, Text: "too many requests, please try again later"}, blocksForever, nil, Retry, "too many"},
		"webhook cannot tell":   {Response{Code: 429, Text: "kubevirt failed getting the vmi: timeout"}, blocksForever, nil, Retry, "getting"},
		"no rights":             {Response{Code: 403, Text: "forbidden"}, nil, nil, Failed, "forbidden"},
		"terminating namespace": {Response{Code: 403, Causes: []string{"NamespaceTerminating"}}, nil, nil, Retry, "terminating"},
		"conflict":              {Response{Code: 409, Text: "uid"}, nil, nil, Retry, ""},
		"no server":             {Response{Text: "connection refused"}, nil, nil, Retry, "refused"},
		"server error":          {Response{Code: 500, Text: "etcd"}, nil, nil, Retry, "etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Classify(&Pod{Owner: "ReplicaSet web"}, &c.response, c.budgets, c.vm)
			if got.Verdict != c.want || !strings.Contains(got.Reason, c.text) {
				t.Errorf("%+v", got)
			}
		})
	}
}

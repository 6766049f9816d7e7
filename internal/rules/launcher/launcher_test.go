package launcher

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func vmi(phase kubevirt.VMIPhase, node string, is *kubevirt.Launcher) *kubevirt.VirtualMachineInstance {
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: types.UID("u")}}
	v.Status = kubevirt.VirtualMachineInstanceStatus{Phase: phase, NodeName: node, Launcher: is}
	return v
}

func recorded() *kubevirt.Launcher { return &kubevirt.Launcher{Pod: "p", PodUID: "p"} }
func waits() *kubevirt.Launcher    { return &kubevirt.Launcher{} }

// pod returns a linked launcher with these changes.
func pod(name, node string, change ...func(*Pod)) Pod {
	p := Pod{Name: name, UID: name, Node: node, VMIUID: "u", Linked: true}
	for _, c := range change {
		c(&p)
	}
	return p
}

func ready(p *Pod)     { p.Ready = true }
func deleting(p *Pod)  { p.Deleting = true }
func succeeded(p *Pod) { p.Ended, p.Succeeded = true, true }
func failed(p *Pod)    { p.Ended = true }
func byHand(p *Pod)    { p.Linked = false }
func unlinked(p *Pod)  { p.VMIUID, p.Linked = "", false }
func target(p *Pod)    { p.Target, p.Linked = true, false }
func owned(p *Pod)     { p.Owned = true }
func former(p *Pod)    { p.VMIUID = "former" }
func later(p *Pod)     { p.Created = time.Unix(9, 0) }

func moving(phase kubevirt.MigrationPhase) []kubevirt.VirtualMachineInstanceMigration {
	m := kubevirt.VirtualMachineInstanceMigration{}
	m.Status.Phase, m.Status.MigrationState = phase, &kubevirt.MigrationState{VMIUID: "u"}
	return []kubevirt.VirtualMachineInstanceMigration{m}
}

const twice = "has launcher pod f of another VMI of this name, and it has not ended"

func on(node string, v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstance {
	v.Labels = map[string]string{kubevirt.NodeNameLabel: node}
	return v
}

// moved is a VMI that a migration has moved to node b, as its controller writes it.
func moved(is *kubevirt.Launcher) *kubevirt.VirtualMachineInstance {
	v := vmi(kubevirt.VMIRunning, "b", is)
	v.Status.MigrationState = &kubevirt.MigrationState{Completed: true, TargetNode: "b", TargetPod: "t"}
	return v
}

// Given a VMI and the pods that name it, then its status has the phase as KubeVirt means it, its
// node, and its launcher, or is left as it is ("-").
func TestWhatTheStatusOfAVMISays(t *testing.T) {
	for name, c := range map[string]struct {
		given Facts
		want  string // phase, node, launcher
	}{
		"no launcher yet":                    {Facts{VMI: vmi("", "", nil)}, "Pending  "},
		"still none":                         {Facts{VMI: vmi("Pending", "", waits())}, "-"},
		"its launcher is made":               {Facts{VMI: vmi("Pending", "", waits()), Pods: []Pod{pod("p", "")}}, "Scheduling  p"},
		"it finds no node":                   {Facts{VMI: vmi("Scheduling", "", recorded()), Pods: []Pod{pod("p", "")}}, "-"},
		"it has a node":                      {Facts{VMI: vmi("Scheduling", "", recorded()), Pods: []Pod{pod("p", "a")}}, "Scheduling a p"},
		"it is ready":                        {Facts{VMI: vmi("Scheduling", "a", recorded()), Pods: []Pod{pod("p", "a", ready)}}, "Running a p"},
		"all at once":                        {Facts{VMI: vmi("", "", nil), Pods: []Pod{pod("p", "a", ready)}}, "Running a p"},
		"it runs":                            {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", ready)}}, "-"},
		"no longer ready":                    {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a")}}, "-"},
		"its pod is being deleted":           {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", ready, deleting)}}, "-"},
		"it has ended":                       {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", succeeded)}}, "Succeeded a p"},
		"it has failed":                      {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", failed)}}, "Failed a p"},
		"it has failed before it ran":        {Facts{VMI: vmi("Scheduling", "", recorded()), Pods: []Pod{pod("p", "a", failed)}}, "Failed a p"},
		"its pod is gone, and had succeeded": {Facts{VMI: vmi("Running", "a", recorded()), Gone: pod("p", "a", succeeded)}, "Succeeded a p"},
		"its pod is gone, how is not known":  {Facts{VMI: vmi("Running", "a", recorded()), Gone: pod("other", "a", succeeded)}, "Failed a p"},
		"its pod is gone and made anew":      {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p2", "a", ready)}}, "Failed a p"},
		"final":                              {Facts{VMI: vmi("Failed", "a", recorded()), Pods: []Pod{pod("p2", "a", ready)}}, "-"},
		"a second launcher":                  {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("x", "a", failed), pod("p", "a", ready)}}, "-"},
		"two at once: the older":             {Facts{VMI: vmi("", "", nil), Pods: []Pod{pod("x", "a", later), pod("p", "b")}}, "Scheduling b p"},
		"a former VMI's":                     {Facts{VMI: vmi("", "", nil), Pods: []Pod{pod("x", "a", func(p *Pod) { p.VMIUID = "former" })}}, "Pending  "},
		"one that is not linked":             {Facts{VMI: vmi("", "", nil), Pods: []Pod{pod("x", "a", ready, unlinked)}}, "Pending  "},

		"labelled by hand":              {Facts{VMI: vmi("", "", nil), Pods: []Pod{pod("p", "a", ready, byHand)}}, "Running a p"},
		"labelled by hand, after all":   {Facts{VMI: vmi("Pending", "", waits()), Pods: []Pod{pod("p", "a", ready, byHand)}}, "Running a p"},
		"and placed":                    {Facts{VMI: on("a", vmi("", "", nil)), Pods: []Pod{pod("p", "a", byHand)}}, "Scheduling a p"},
		"and placed elsewhere":          {Facts{VMI: on("b", vmi("", "", nil)), Pods: []Pod{pod("p", "a", ready, byHand)}}, "Running  p"},
		"and ended":                     {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", succeeded, byHand)}}, "Succeeded a p"},
		"and had ended":                 {Facts{VMI: on("a", vmi("", "", nil)), Pods: []Pod{pod("p", "a", failed, byHand)}}, "Failed a p"},
		"and made anew, elsewhere":      {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", succeeded, byHand), pod("p2", "b", byHand)}}, "Scheduling b p2"},
		"and made anew after the end":   {Facts{VMI: vmi("Failed", "a", recorded()), Pods: []Pod{pod("p", "a", failed, byHand), pod("p2", "a", ready, byHand)}}, "Running a p2"},
		"and over":                      {Facts{VMI: vmi("Failed", "a", recorded()), Pods: []Pod{pod("p", "a", failed, byHand)}}, "-"},
		"and moved before":              {Facts{VMI: vmi("", "b", nil), Pods: []Pod{pod("p", "a", succeeded, byHand), pod("t", "b", ready, target)}}, "Running b t"},
		"and others write the phase":    {Facts{VMI: vmi("Scheduled", "", nil), Pods: []Pod{pod("p", "a", ready, byHand)}}, "-"},
		"and others have begun to":      {Facts{VMI: vmi("Failed", "a", recorded()), Others: true, Pods: []Pod{pod("p", "a", ready, byHand)}}, "taken back"},
		"placed by hand":                {Facts{VMI: vmi("", "a", nil)}, "-"},
		"placed by hand, after all":     {Facts{VMI: vmi("Pending", "a", waits())}, "taken back"},
		"somebody else writes a phase":  {Facts{VMI: vmi("Running", "", nil)}, "-"},
		"labelled by hand, beside ours": {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", ready), pod("x", "b", byHand)}}, "-"},

		"a target pod":                         {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", ready), pod("t", "b", ready, target)}}, "-"},
		"the target pod fails":                 {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", ready), pod("t", "b", failed, target)}}, "-"},
		"the source ends first":                {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", succeeded), pod("t", "b", ready, target)}, Migrations: moving("Running")}, "-"},
		"the source is gone first":             {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("t", "b", ready, target)}, Migrations: moving("Running")}, "-"},
		"the source ends, the migration fails": {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", succeeded)}, Migrations: moving("Failed")}, "Succeeded a p"},
		"it ends while one is pending":         {Facts{VMI: vmi("Running", "a", recorded()), Pods: []Pod{pod("p", "a", failed)}, Migrations: moving("Pending")}, "Failed a p"},
		"moved":                                {Facts{VMI: moved(recorded()), Pods: []Pod{pod("p", "a", succeeded), pod("t", "b", ready, target)}}, "Running b t"},
		"moved, the source is gone":            {Facts{VMI: moved(recorded()), Pods: []Pod{pod("t", "b", ready, target)}}, "Running b t"},
		"moved, the target not ready":          {Facts{VMI: moved(recorded()), Pods: []Pod{pod("t", "b", target)}}, "Running b t"},
		"moved, and ended there":               {Facts{VMI: moved(&kubevirt.Launcher{Pod: "t", PodUID: "t"}), Pods: []Pod{pod("t", "b", succeeded, target)}}, "Succeeded b t"},
		"moved, and ended before it was known": {Facts{VMI: moved(recorded()), Pods: []Pod{pod("p", "a", succeeded), pod("t", "b", failed, target)}}, "Failed b t"},
		"moved, and the next one has failed":   {Facts{VMI: vmi("Running", "b", recorded()), Pods: []Pod{pod("p", "a", succeeded), pod("t", "b", ready, target)}}, "Running b t"},
		"there and back": {Facts{VMI: moved(&kubevirt.Launcher{Pod: "q", PodUID: "q"}),
			Pods: []Pod{pod("p", "b", succeeded), pod("q", "a", succeeded, target), pod("t", "b", ready, target)}}, "Running b t"},
	} {
		s := Next(c.given)
		got := "-"
		switch {
		case s.Write && s.Launcher == nil && (s.Phase == "" || c.given.Others && s.Phase == c.given.VMI.Status.Phase):
			got = "taken back"
		case s.Write:
			got = string(s.Phase) + " " + s.Node + " " + s.Launcher.PodUID
		}
		if final := s.Phase == kubevirt.VMISucceeded || s.Phase == kubevirt.VMIFailed; got != c.want || s.Write && s.Launcher != nil && s.Final != final {
			t.Errorf("%s: %q, want %q (%+v)", name, got, c.want, s)
		}
	}
}

// Given a VMI and the pods that name it, then one pod becomes its launcher in its life.
func TestWhichPodBecomesALauncher(t *testing.T) {
	ending := vmi("", "", nil)
	ending.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		vmi     *kubevirt.VirtualMachineInstance
		pods    []Pod
		refused string
		first   string // of those that wait
	}{
		"one":                      {vmi("Pending", "", waits()), []Pod{pod("p", "", unlinked)}, "", "p"},
		"of two, the older":        {vmi("", "", nil), []Pod{pod("x", "", unlinked, later), pod("p", "", unlinked)}, "", "p"},
		"none that has ended":      {vmi("", "", nil), []Pod{pod("x", "", unlinked, failed)}, "", ""},
		"none that is deleted":     {vmi("", "", nil), []Pod{pod("x", "", unlinked, deleting)}, "", ""},
		"no target pod":            {vmi("", "", nil), []Pod{pod("x", "", unlinked, target)}, "", ""},
		"there is one":             {vmi("", "", nil), []Pod{pod("p", "a"), pod("x", "", unlinked)}, "has launcher pod p already", "x"},
		"there is one by hand":     {vmi("", "", nil), []Pod{pod("p", "a", byHand), pod("x", "", unlinked)}, "has launcher pod p already", "x"},
		"there was one":            {vmi("Running", "a", recorded()), []Pod{pod("x", "", unlinked)}, "had launcher pod p: delete it, and apply its file again", "x"},
		"a former VMI's, ended":    {vmi("", "", nil), []Pod{pod("f", "a", former, owned, failed), pod("p", "", unlinked)}, "", "p"},
		"a former VMI's, ending":   {vmi("", "", nil), []Pod{pod("f", "a", former, owned, deleting), pod("p", "", unlinked)}, twice, "p"},
		"a former VMI's, orphaned": {vmi("", "", nil), []Pod{pod("f", "a", former, deleting), pod("p", "", unlinked)}, twice, "p"},
		"a former VMI's, moved":    {vmi("", "", nil), []Pod{pod("f", "a", former, target), pod("p", "", unlinked)}, twice, "p"},
		"another's, by hand":       {vmi("", "", nil), []Pod{pod("f", "a", former, byHand), pod("p", "", unlinked)}, twice, "p"},
		"restored from a backup":   {vmi("", "", nil), []Pod{pod("p", "a", former)}, "", "p"},
		"the VM has ended":         {vmi("Succeeded", "a", nil), []Pod{pod("x", "", unlinked)}, "has ended (Succeeded): delete it, and apply its file again", "x"},
		"the VMI is being deleted": {ending, []Pod{pod("x", "", unlinked)}, "is being deleted: apply its file again when it is gone", "x"},
	} {
		first := ""
		if all := Unlinked("u", c.pods); len(all) > 0 {
			first = all[0].Name
		}
		if got := Refusal(c.vmi, c.pods); got != c.refused || first != c.first {
			t.Errorf("%s: %q for %q, want %q for %q", name, got, first, c.refused, c.first)
		}
	}
}

// Given a VMI that a pod has claimed. Then another one waits, and not for ever.
func TestAClaimCountsForAWhile(t *testing.T) {
	at := time.Unix(100, 0)
	v := vmi("", "", nil)
	v.Status.Claim = &kubevirt.Claim{Pod: "p", At: metav1.Time{Time: at}}
	for after, want := range map[time.Duration]bool{0: true, ClaimFor - 1: true, ClaimFor: false, -time.Hour: false} {
		if got := Claimed(v, "q", at.Add(after)) != ""; got != want || Claimed(v, "p", at.Add(after)) != "" {
			t.Errorf("after %v: %v", after, got)
		}
	}
}

// Given launchers of one VM that live. Then two that are no migration's pair are told.
func TestTwoLaunchersThatAreNoPairAreTold(t *testing.T) {
	under := moving("Running")
	under[0].Status.MigrationState.SourcePod = "p"
	done := moving("Succeeded")
	done[0].Status.MigrationState.SourcePod = "p"
	for name, c := range map[string]struct {
		given Facts
		want  string
	}{
		"one":                           {Facts{Pods: []Pod{pod("p", "a"), pod("x", "a", failed)}}, ""},
		"both linked":                   {Facts{Pods: []Pod{pod("q", "a"), pod("p", "a")}}, "p q"},
		"one is not linked":             {Facts{Pods: []Pod{pod("p", "a"), pod("q", "", unlinked)}}, "p q"},
		"one is a former VMI's":         {Facts{Pods: []Pod{pod("p", "a"), pod("q", "a", former, deleting)}}, "p q"},
		"a pair":                        {Facts{Pods: []Pod{pod("p", "a"), pod("t", "b", target)}, Migrations: under}, ""},
		"a pair that has moved":         {Facts{VMI: moved(recorded()), Pods: []Pod{pod("p", "a"), pod("t", "b", target)}, Migrations: done}, ""},
		"a failed move's target":        {Facts{Pods: []Pod{pod("p", "a"), pod("t", "b", target)}}, ""},
		"made again after it has moved": {Facts{VMI: moved(recorded()), Pods: []Pod{pod("n", "a", unlinked), pod("t", "b", target)}}, "n t"},
	} {
		if c.given.VMI == nil {
			c.given.VMI = vmi("Running", "a", recorded())
		}
		if got := strings.Join(Several(c.given), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Given the pods that name a VM, whoever has labelled them. Then the guest would run twice beside one
// whose containers have not ended.
func TestALauncherThatLivesIsFound(t *testing.T) {
	for want, pods := range map[string][]Pod{
		"":                           {pod("x", "a", succeeded), pod("x", "a", failed), pod("x", "a", former, succeeded)},
		"has launcher pod p already": {pod("x", "a", succeeded), pod("p", "b", target)},
		"has launcher pod d already": {pod("d", "a", deleting)},
		"has launcher pod u already": {pod("u", "", unlinked)},
		twice:                        {pod("f", "a", former, deleting)},
	} {
		if got := Living("u", pods); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

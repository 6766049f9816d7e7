package kubernetes

import (
	"regexp"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	holdFor = "vmgrace.io/hold-for: PreemptionByScheduler"
	// shown bounds how long a launcher's pod takes to show why it is deleted.
	shown = 2 * time.Second
)

// Given VMs whose shutdown could be held, and others. When a user deletes their pods, then
// no shutdown is held: the guest is asked as soon as the agent sees that the pod is
// deleted.
func TestALauncherDeletedByAUserHasItsGuestAskedAtOnce(t *testing.T) {
	// Given VMs whose shutdown could be held, and others.
	const each = 5
	w := given(t, api)
	took := map[string][]time.Duration{}
	for range each {
		for kind, annotation := range map[string]string{"could be held": holdFor, "could not": ""} {
			v := w.guardedBy(launcher{annotation: annotation}, node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 1")
			// When a pod is deleted and its launcher signalled at the same time,
			from := v.deletedAndSignalled()
			// then the guest is asked.
			took[kind] = append(took[kind], v.asked().Sub(from))
			v.stopped("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
		}
	}
	for kind, all := range took {
		slices.Sort(all)
		t.Logf("launchers whose shutdown %s: asked after %v (median), %v (the latest of %d)", kind, all[each/2], all[each-1], each)
		if all[0] < -time.Millisecond || all[each-1] > shown {
			t.Errorf("launchers whose shutdown %s: asked after %v", kind, all)
		}
	}
}

// deletedAndSignalled signals the launcher, deletes its pod, and returns when it signalled.
// At that time nobody has seen yet that the pod is deleted.
func (v vm) deletedAndSignalled() time.Time {
	w := v.w
	w.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.api.Kubeconfig)
	if err != nil {
		w.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	signalled := v.SignalShim(w)
	if err := client.CoreV1().Pods("default").Delete(w.Context(), "launcher-"+v.Name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	return signalled
}

// asked returns when the agent asked the guest, to the millisecond, by the agent's log.
func (v vm) asked() time.Time {
	v.w.Helper()
	line := regexp.MustCompile(`time=(\S+) \S+ msg="asked the guest to shut down" namespace=default name=` + v.Name + " ")
	var found []string
	node.Eventually(v.w, soon, func() bool { found = line.FindStringSubmatch(v.w.agent.Log()); return found != nil }, "%s is not asked", v.Domain)
	return node.WallTime(v.w, found[1])
}

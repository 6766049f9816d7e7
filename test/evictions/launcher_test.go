//go:build !unit

package evictions

import (
	"crypto/tls"
	"math"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

func TestALauncherPodOutlivesItsVMsGracePeriod(t *testing.T) {
	replicas(t, 1)
	const century = 100 * 365 * 24 * 3600
	for name, c := range map[string]struct {
		vm   *int64
		want int64
	}{
		"stated": {new(int64(180)), 210}, "default": {nil, 60}, "zero": {new(int64(0)), 30},
		"negative": {new(int64(-5)), 60}, "huge": {new(int64(math.MaxInt64)), century}, "shorter than the pod's": {new(int64(0)), 30},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{grace: c.vm})
			p := v.readPod()
			if got := *p.Spec.TerminationGracePeriodSeconds; got != c.want {
				t.Errorf("terminationGracePeriodSeconds is %d, want %d", got, c.want)
			}
			if _, only := p.Annotations["descheduler.alpha.kubernetes.io/request-evict-only"]; !only {
				t.Error("the descheduler is not told that it is to be evicted only")
			}
		})
	}
}

// Given two replicas that run. When the policy's launcherPadding changes, then the next
// launcher pod has the new padding. Otherwise an operator would have to restart the
// controller.
func TestThePaddingIsFollowedLive(t *testing.T) {
	all := replicas(t, 2)
	policy := `{apiVersion: vmgrace.io/v1alpha1, kind: EvacuationPolicy, metadata: {name: default}, spec: {launcherPadding: 70s}}`
	shared.KubectlApply(t, policy)
	t.Cleanup(func() { _, _ = shared.TryKubectl(rig.After(t), "", "delete", "evacuationpolicy", "default") })
	allSay(t, all, "LauncherPadding:1m10s")
	v := newVM(t, vm{grace: new(int64(100))})
	if got := *v.readPod().Spec.TerminationGracePeriodSeconds; got != 170 {
		t.Errorf("terminationGracePeriodSeconds is %d, want 170", got)
	}
}

func TestAPodThatIsNoVMsIsLeftAlone(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{grace: new(int64(600))})
	v.uid = "somebody-elses"
	kit.Must(t, v.Delete(t.Context(), v.launcherPod(), client.GracePeriodSeconds(0)))
	if p := v.pod(); *p.Spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("terminationGracePeriodSeconds is %d", *p.Spec.TerminationGracePeriodSeconds)
	}
}

func TestALauncherThatIsNotProtectedGetsAWarning(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{})
	kit.Must(t, v.Delete(t.Context(), v.launcherPod(), client.GracePeriodSeconds(0)))
	_, err := shared.TryKubectl(t.Context(), `
apiVersion: v1
kind: Pod
metadata:
  name: odd
  namespace: default
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: "`+v.uid+`"}
  annotations: {kubevirt.io/domain: `+v.name+`}
spec: {containers: [{name: c, image: none, livenessProbe: {tcpSocket: {port: 9252}, terminationGracePeriodSeconds: 5}}]}
`, "create", "--warnings-as-errors", "-f", "-")
	t.Cleanup(func() {
		_, _ = shared.TryKubectl(rig.After(t), "", "delete", "pod", "odd", "--grace-period=0", "--force")
	})
	for _, warning := range []string{"can be evicted without its VM being moved", "where the probe fails the guest loses its grace period"} {
		if err == nil || !strings.Contains(err.Error(), warning) {
			t.Errorf("no warning that it %s: %v", warning, err)
		}
	}
}

func TestCertificatesAreRenewedWithoutARestart(t *testing.T) {
	shared.Kubectl(t, "delete", "secret", "-n", rig.Ours, "vmgrace-cluster-controller", "--ignore-not-found")
	all := replicas(t, 2, "--certificate-validity=20s")
	serial := func() string {
		c, err := tls.Dial("tcp", "127.0.0.1:"+all[0].webhook, &tls.Config{InsecureSkipVerify: true})
		kit.Must(t, err)
		defer c.Close()
		return string(c.ConnectionState().PeerCertificates[0].Signature)
	}
	seen := map[string]bool{}
	// A CA is in the caBundle for three generations, so the fourth certificate needs a
	// CA that was not there at first.
	for end := time.Now().Add(2 * time.Minute); len(seen) < 4; {
		if time.Now().After(end) {
			t.Fatalf("%d certificates in two minutes", len(seen))
		}
		seen[serial()] = true
		v := newVM(t, vm{strategy: "LiveMigrate"})
		if a := v.evict(); a.code != 429 {
			t.Fatalf("with the %dth certificate the webhook was not asked: %+v", len(seen), a)
		}
	}
}

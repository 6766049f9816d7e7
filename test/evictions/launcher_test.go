//go:build !unit

package evictions

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

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

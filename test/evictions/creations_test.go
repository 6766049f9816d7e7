//go:build nightly && !unit

package evictions

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a namespace that fills up with 4,000 launchers. When one more is created, then it is linked
// to its VMI, and the log says what a creation took when the namespace was empty and when it was full.
func TestLaunchersOfAFullNamespaceAreLinkedAtTheirCreation(t *testing.T) {
	replicas(t, 1)
	s := shared.Namespace(t)
	const all, part = 4000, 500
	for from := 0; from < all; from += part {
		vmis := make([]*kubevirt.VirtualMachineInstance, part)
		for i := range vmis {
			vmis[i] = s.VMI(fmt.Sprintf("vm-%d", from+i), "", kubevirt.StrategyLiveMigrate)
			kit.Must(t, shared.TryMake(t.Context(), vmis[i], ""))
		}
		settled(t)
		took := make([]time.Duration, part)
		for i, v := range vmis {
			p := s.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}, "")
			delete(p.Labels, kubevirt.CreatedByLabel)
			begin := time.Now()
			kit.Must(t, shared.TryMake(t.Context(), p, ""))
			took[i] = time.Since(begin)
			if p.Labels[kubevirt.CreatedByLabel] != string(v.UID) {
				t.Fatalf("%s is linked to %q", p.Name, p.Labels[kubevirt.CreatedByLabel])
			}
		}
		slices.Sort(took)
		t.Logf("among %d to %d: a creation took %v (median), %v at most", from, from+part, took[part/2], took[part-1])
	}
}

//go:build figures

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// TestADrainOfEightBesideVirsh measures a figure of docs/lab/performance.md. make e2e does
// not run it. Given eight guests that kubectl vmdrain moves and eight that virsh moves, two
// at a time as the settings allow, with the same bandwidth. Then the test logs both
// durations.
func TestADrainOfEightBesideVirsh(t *testing.T) {
	const many, atOnce = 8, 2
	for _, bandwidth := range []int{0, 8, 3} { // MiB/s; 0 = no limit
		t.Run(fmt.Sprintf("%d MiB a second", bandwidth), func(t *testing.T) {
			w := given(t)
			w.controller()
			w.afterwards("delete", "-n", agents, "kubevirt/kubevirt", "--ignore-not-found")
			w.KubectlApply(t, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: %s}
spec: {configuration: {migrations: {bandwidthPerMigration: %dMi}}}
`, agents, bandwidth))
			// Given domains without a VMI, which virsh moves.
			names := make(chan string, many)
			for range many {
				names <- w.b.Start(t, node.Spec{Namespace: "nobodys"}).Domain
			}
			close(names)
			ours := w.vms(slices.Repeat([]plan{{grace: 30, on: w.b}}, many)...)
			w.liveMigratable(ours...)
			script := "virsh -q migrate --live --p2p --tunnelled "
			if bandwidth > 0 {
				script += fmt.Sprintf("--bandwidth %d ", bandwidth)
			}
			to := w.find(objects.Query{Kind: "node", Name: w.a.Name, Path: `{.status.addresses[?(@.type=="InternalIP")].address}`})
			begin := time.Now()
			var group sync.WaitGroup
			for range atOnce {
				group.Go(func() {
					for name := range names {
						if out, err := w.b.TryRun(t.Context(), nil, script+name+" qemu+tcp://"+to+"/system"); err != nil {
							t.Errorf("virsh migrate: %v %s", err, out)
						}
					}
				})
			}
			group.Wait()
			byVirsh := time.Since(begin)
			w.a.Run(t, "for d in $(virsh list --name | grep ^nobodys_); do virsh destroy $d; done")
			// Given VMs, which the agents move.
			w.afterwards("uncordon", w.b.Name)
			if _, err := w.buildVMDrain(); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			w.vmdrain(w.b, func() {})
			drained := time.Since(begin)
			for _, v := range ours {
				v.moved(w.a)
			}
			t.Logf("kubectl vmdrain %.1f s, virsh %.1f s: %.2f x", drained.Seconds(), byVirsh.Seconds(), drained.Seconds()/byVirsh.Seconds())
		})
	}
}

package deploy

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func installCRDs(t *testing.T) {
	t.Helper()
	if _, err := api.Script(t.Context(), root+"deploy/crds/run", "apply"); err != nil {
		t.Fatal(err)
	}
}

const manyVMIs = `
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: normal, labels: {kubevirt.io/nodeName: node-x}},
 spec: {terminationGracePeriodSeconds: 47, domain: {devices: {disks: [{name: a}]}}}}
---
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: negative}, spec: {terminationGracePeriodSeconds: -1}}
---
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: empty}, spec: {}}
---
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move}, spec: {vmiName: normal}}
`

func TestVMIsOfAllKindsAreTaken(t *testing.T) {
	installCRDs(t)
	api.KubectlApply(t, manyVMIs)
	for args, want := range map[string]string{
		"get vmi normal -o jsonpath={.spec.domain.devices.disks[0].name}":                    "a",
		"get vmis negative -o jsonpath={.spec.terminationGracePeriodSeconds}":                "-1",
		"get vmim move -o jsonpath={.spec.vmiName}":                                          "normal",
		"get vmim move -o jsonpath={.status.phase}/{.status.migrationState.vmgraceWaitsFor}": "Pending/its turn", // before anybody writes it
		"get virtualmachineinstance empty -o jsonpath={.spec.terminationGracePeriodSeconds}": "",
	} {
		if got := api.Kubectl(t, strings.Fields(args)...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	_, err := api.TryKubectl(t.Context(), strings.Replace(manyVMIs, "47", `"47"`, 1), "apply", "-f", "-")
	if err == nil {
		t.Error("a grace period that is a string was taken")
	}
}

func TestKubectlGetShowsWhereAVMIsAndItsGracePeriod(t *testing.T) {
	installCRDs(t)
	api.KubectlApply(t, manyVMIs)
	api.Kubectl(t, "patch", "vmi", "normal", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running"}}`)
	var table string
	// kubectl may still use the columns that the API server had a moment ago.
	node.Eventually(t, 20*time.Second, func() bool {
		table = api.Kubectl(t, "get", "vmi", "normal")
		return strings.Contains(table, "GRACE")
	}, "kubectl get vmi shows the columns")
	head, row, _ := strings.Cut(table, "\n")
	if got := strings.Fields(head); strings.Join(got, " ") != "NAME PHASE NODE GRACE AGE" {
		t.Errorf("columns %v", got)
	}
	if got := strings.Fields(row); len(got) != 5 || strings.Join(got[:4], " ") != "normal Running node-x 47" {
		t.Errorf("row %v", got)
	}
}

//go:build !unit

package kube

import (
	"context"
	"net/http"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// As virt-controller and virt-handler write a VMI (kubevirt.io/api v1): made for
// a VirtualMachine that owns it, with KubeVirt's own finalizer and annotations.
const kubeVirtMetadata = `,"kubevirt.io/vm":"vm"},
	"annotations":{"kubevirt.io/latest-observed-api-version":"v1","kubevirt.io/storage-observed-api-version":"v1","kubevirt.io/vm-generation":"1"},
	"finalizers":["kubevirt.io/virtualMachineControllerFinalize","foregroundDeleteVirtualMachine"],
	"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"vm","uid":"6f4a9b0e-0001","controller":true,"blockOwnerDeletion":true}]`

const (
	kubeVirtSpec = `{"terminationGracePeriodSeconds":180,"evictionStrategy":"LiveMigrate","domain":{"cpu":{"cores":1},
		"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}]},"machine":{"type":"q35"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}`
	kubeVirtStatus = `{"status":{"phase":"Running","nodeName":"n","activePods":{"1c9e":"n"},"guestOSInfo":{"id":"fedora"},
		"conditions":[{"type":"Ready","status":"True"},{"type":"LiveMigratable","status":"True"}],
		"phaseTransitionTimestamps":[{"phase":"Running","phaseTransitionTimestamp":"2026-01-02T03:04:05Z"}]}}`
)

func TestAVMIAsKubeVirtWritesIt(t *testing.T) {
	r := newRig(t)
	// Given: KubeVirt's own CRD has no status subresource; its columns and its
	// second version change nothing here.
	if _, err := r.api.TryKubectl(t.Context(), "", "patch", "crd", kubevirt.CRD, "--type=json", "-p", `[{"op":"remove","path":"/spec/versions/0/subresources"}]`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := r.api.TryKubectl(context.Background(), "", "replace", "-f", crdFile); err != nil {
			t.Error(err)
		}
	})
	r.makeVMI("probe", "", `{}`)
	r.eventually(func() bool {
		return r.do("PATCH", r.vmiPath("probe")+"/status", `{}`).code == http.StatusNotFound
	}, "the status subresource is still served")
	r.watching()
	r.must("POST", r.vmiPath("")[:len(r.vmiPath(""))-1], `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance",
		"metadata":{"name":"vm","labels":{"kubevirt.io/nodeName":"`+r.name+`"`+kubeVirtMetadata+`},"spec":`+kubeVirtSpec+`}`)
	r.eventually(func() bool { v := r.VMI(r.name, "vm"); return v.Grace == "180" }, "it is not seen")
	v := r.VMI(r.name, "vm")

	// When its status changes, nobody is woken.
	n := r.changes("vm")
	r.must("PATCH", r.vmiPath("vm"), kubeVirtStatus)
	r.toldOfAll("mark")
	if r.changes("vm") != n {
		t.Error("somebody was woken for a status")
	}
	r.wantFate("vm", v, grace.FateHere)

	// When it is deleted, its finalizers keep it until the VM is gone.
	r.must("DELETE", r.vmiPath("vm"), "")
	r.deleting("vm")
	first := r.VMI(r.name, "vm")
	r.must("PATCH", r.vmiPath("vm"), `{"status":{"phase":"Succeeded"},"metadata":{"finalizers":["foregroundDeleteVirtualMachine"]}}`)
	r.sees("mark2", r.makeVMI("mark2", "", `{}`))
	r.sees("vm", first)
	r.must("PATCH", r.vmiPath("vm"), `{"metadata":{"finalizers":null}}`)
	r.misses("vm")
	r.wantFate("vm", v, grace.FateDeleted)
}

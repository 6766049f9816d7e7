package kube

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// KubeVirt's names (kubevirt.io/api, core/v1/types.go).
const (
	vmiAPIGroup = "kubevirt.io"
	vmiResource = "virtualmachineinstances"
	vmiKind     = "VirtualMachineInstance"

	nodeLabel        = "kubevirt.io/nodeName"
	launcherLabel    = "kubevirt.io"
	launcherValue    = "virt-launcher"
	createdByLabel   = "kubevirt.io/created-by"
	domainAnnotation = "kubevirt.io/domain"
)

// maxGrace bounds what is kept of a grace period that is none.
const maxGrace = 64

func vmiGroup() schema.GroupVersion { return schema.GroupVersion{Group: vmiAPIGroup, Version: "v1"} }

// vmi is as much of a VirtualMachineInstance as counts here. KubeVirt's own
// type would refuse a whole list for one field of another type.
type vmi struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              vmiSpec `json:"spec"`
}

// vmiSpec keeps the text of terminationGracePeriodSeconds.
type vmiSpec struct{ grace string }

// UnmarshalJSON never fails: a spec of another kind states nothing.
func (s *vmiSpec) UnmarshalJSON(text []byte) error {
	s.grace = ""
	var fields map[string]json.RawMessage // a struct would take other spellings too
	if json.Unmarshal(text, &fields) != nil {
		return nil //nolint:nilerr // it says nothing about the grace period
	}
	stated := string(fields["terminationGracePeriodSeconds"])
	if stated != "null" {
		s.grace = cut(stated, maxGrace)
	}
	return nil
}

// cut makes valid text of at most n bytes, in memory of its own.
func cut(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	return strings.Clone(strings.ToValidUTF8(text, ""))
}

// DeepCopyObject is what the library wants of every object.
func (v *vmi) DeepCopyObject() runtime.Object { c := v.copied(); return &c }

func (v *vmi) copied() vmi {
	c := *v
	v.DeepCopyInto(&c.ObjectMeta)
	return c
}

func addVMIs(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(vmiGroup().WithKind(vmiKind), &vmi{})
	s.AddKnownTypeWithName(vmiGroup().WithKind(vmiKind+"List"), &listOf[vmi, *vmi]{})
	metav1.AddToGroupVersion(s, vmiGroup())
	return nil
}

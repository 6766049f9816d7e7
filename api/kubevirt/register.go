package kubevirt

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is KubeVirt's API group, Version the one that is read.
const (
	Group   = "kubevirt.io"
	Version = "v1"
)

// GroupVersion of KubeVirt's objects.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// CRD is the name of the VMIs' CustomResourceDefinition.
const CRD = "virtualmachineinstances.kubevirt.io"

// AddToScheme makes the types known.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(),
		&VirtualMachineInstance{}, &VirtualMachineInstanceList{},
		&VirtualMachineInstanceMigration{}, &VirtualMachineInstanceMigrationList{},
		&KubeVirt{}, &KubeVirtList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// Package kubevirt has the fields of KubeVirt's objects (kubevirt.io/v1) that
// vmgrace reads or patches, and KubeVirt's names.
//
// Objects of these types are never sent back whole: fields that are not here
// would be lost. They are only patched.
//
// KubeVirt's own module has all fields, and brings Kubernetes' whole core API
// with it, which the node side does without.
//
// +kubebuilder:object:generate=true
package kubevirt

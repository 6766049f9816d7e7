// Package v1alpha1 has vmgrace's own kind: EvacuationPolicy, the settings of
// the whole cluster that KubeVirt's object has no place for.
//
// +kubebuilder:object:generate=true
package v1alpha1

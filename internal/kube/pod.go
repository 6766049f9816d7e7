package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	podResource = "pods"
	podKind     = "Pod"
)

func coreGroup() schema.GroupVersion { return schema.GroupVersion{Version: "v1"} }

// pod is as much of a Pod as counts here. With Kubernetes' own type all of the
// core API is in the agent's memory.
type pod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              podSpec   `json:"spec"`
	Status            podStatus `json:"status"`
}

type podSpec struct {
	NodeName                      string `json:"nodeName"`
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds"` // is never written to
}

type podStatus struct {
	Phase string `json:"phase"`
}

// done: none of its containers runs, or will again.
func (p *pod) done() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// DeepCopyObject is what the library wants of every object.
func (p *pod) DeepCopyObject() runtime.Object { c := p.copied(); return &c }

func (p *pod) copied() pod {
	c := *p
	p.DeepCopyInto(&c.ObjectMeta)
	return c
}

func addPods(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(coreGroup().WithKind(podKind), &pod{})
	s.AddKnownTypeWithName(coreGroup().WithKind(podKind+"List"), &listOf[pod, *pod]{})
	return nil
}

package kube

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// resource is a kind of objects.
type resource struct {
	group, kind, plural string // each in version v1
}

func vmis() resource {
	return resource{"kubevirt.io", "VirtualMachineInstance", "virtualmachineinstances"}
}
func migrations() resource {
	return resource{"kubevirt.io", "VirtualMachineInstanceMigration", "virtualmachineinstancemigrations"}
}
func pods() resource   { return resource{"", "Pod", "pods"} }
func nodes() resource  { return resource{"", "Node", "nodes"} }
func events() resource { return resource{"", "Event", "events"} }
func claims() resource {
	return resource{"", "PersistentVolumeClaim", "persistentvolumeclaims"}
}
func volumes() resource    { return resource{"", "PersistentVolume", "persistentvolumes"} }
func configMaps() resource { return resource{"", "ConfigMap", "configmaps"} }
func crds() resource {
	return resource{"apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"}
}

func signingRequests() resource {
	return resource{"certificates.k8s.io", "CertificateSigningRequest", "certificatesigningrequests"}
}

func (r resource) version() schema.GroupVersion {
	return schema.GroupVersion{Group: r.group, Version: "v1"}
}

// of points a request at objects of this kind.
func (r resource) of(request *rest.Request) *rest.Request {
	root := "/apis"
	if r.group == "" {
		root = "/api"
	}
	return request.AbsPath(root, r.version().String()).Resource(r.plural)
}

// object holds the part of an object that this package reads. KubeVirt's own
// type would refuse a whole list for one field of another type. Kubernetes' own
// types would load all of the core API into the agent's memory.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
	Status            json.RawMessage `json:"status"`
	Data              json.RawMessage `json:"data"` // of a ConfigMap
}

// DeepCopyObject implements runtime.Object. The copy shares spec and status,
// which nobody writes to.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	o.DeepCopyInto(&c.ObjectMeta)
	return &c
}

type objectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

// DeepCopyObject implements runtime.Object. Nobody calls it.
func (l *objectList) DeepCopyObject() runtime.Object { c := *l; return &c }

// readList parses a list. It rejects what no API server sends.
func readList(text []byte, kind string) (*objectList, error) {
	l := &objectList{}
	// Unlike the standard library, kjson matches keys exactly.
	switch err := kjson.Unmarshal(text, l); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNotAPIServer, err)
	case l.Kind != kind:
		return nil, fmt.Errorf("%w: a %.64q, not a %s", errNotAPIServer, l.Kind, kind)
	case l.ResourceVersion == "":
		return nil, fmt.Errorf("%w: a list without a resource version", errNotAPIServer)
	}
	return l, nil
}

// key names an object, or the VMI of a pod.
type key struct{ namespace, name string }

// valid returns whether k can be part of domain names and paths.
func (k key) valid() bool {
	_, _, ok := grace.SplitDomainName(grace.DomainName(k.namespace, k.name))
	return ok
}

// cut returns valid UTF-8 of at most n bytes, in memory of its own.
func cut(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	return strings.Clone(strings.ToValidUTF8(text, ""))
}

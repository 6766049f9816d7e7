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
func pods() resource       { return resource{"", "Pod", "pods"} }
func events() resource     { return resource{"", "Event", "events"} }
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

// of makes a request one for objects of this kind.
func (r resource) of(request *rest.Request) *rest.Request {
	root := "/apis"
	if r.group == "" {
		root = "/api"
	}
	return request.AbsPath(root, r.version().String()).Resource(r.plural)
}

// object is as much of an object as counts here. KubeVirt's
// own type would refuse a whole list for one field of another type, and with
// Kubernetes' own types all of the core API is in the agent's memory.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
	Status            json.RawMessage `json:"status"`
	Data              json.RawMessage `json:"data"` // of a ConfigMap
}

// DeepCopyObject is what the library wants of every object. Spec and status are
// never written to.
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

// DeepCopyObject is what the library wants of every list. Nobody calls it.
func (l *objectList) DeepCopyObject() runtime.Object { c := *l; return &c }

// readList refuses a list that no API server has made.
func readList(text []byte, kind string) (*objectList, error) {
	l := &objectList{}
	// Unlike the standard library it takes no other spelling of a key.
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

// key names an object; a VMI also by its pods.
type key struct{ namespace, name string }

// valid: it becomes part of domain names and paths.
func (k key) valid() bool {
	_, _, ok := grace.SplitDomainName(grace.DomainName(k.namespace, k.name))
	return ok
}

// cut makes valid text of at most n bytes, in memory of its own.
func cut(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	return strings.Clone(strings.ToValidUTF8(text, ""))
}

// Package objects reads Kubernetes' objects in the process of a test, as kubectl get
// does: a test asks again and again, and a process for each look keeps a core busy.
package objects

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/jsonpath"

	"github.com/vmgrace/vmgrace/test/node"
)

// Reader reads from one cluster. Its methods may be called at once.
type Reader struct{ client dynamic.Interface }

// New is a reader with the rights of a kubeconfig.
func New(kubeconfig string) (*Reader, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // tests wait for things, they are no load
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Reader{client}, nil
}

// Read is Get; an error ends the test.
func (r *Reader) Read(t node.T, q Query) string {
	t.Helper()
	out, err := r.Get(t.Context(), q)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// Query is what to read.
type Query struct {
	// Kind is the singular or short name of the resource, one of those of resource.
	Kind string
	// Namespace is "" for objects that have none.
	Namespace string
	// Name of the object; "" = a list of all, in the order of their creation, that
	// the selectors select.
	Name, Labels, Fields string
	// Path is the jsonpath of what to print.
	Path string
}

// Get is what kubectl get -o jsonpath prints, without the spaces around it. An object
// that is not there is an error that apierrors.IsNotFound knows.
func (r *Reader) Get(ctx context.Context, q Query) (string, error) {
	resource, err := resource(q.Kind)
	if err != nil {
		return "", err
	}
	template := jsonpath.New(q.Path).AllowMissingKeys(true)
	if err := template.Parse(q.Path); err != nil {
		return "", fmt.Errorf("%s: %w", q.Path, err)
	}
	found, err := r.read(ctx, resource, q)
	if err != nil {
		return "", fmt.Errorf("get %s %s: %w", q.Kind, q.Name, err)
	}
	var out strings.Builder
	if err := template.Execute(&out, found); err != nil {
		return "", fmt.Errorf("%s of %s %s: %w", q.Path, q.Kind, q.Name, err)
	}
	return strings.TrimSpace(out.String()), nil
}

// Find is Get, and "" where the object is not there.
func (r *Reader) Find(ctx context.Context, q Query) (string, error) {
	out, err := r.Get(ctx, q)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return out, err
}

func (r *Reader) read(ctx context.Context, resource schema.GroupVersionResource, q Query) (map[string]any, error) {
	client := r.client.Resource(resource).Namespace(q.Namespace)
	if q.Name != "" {
		object, err := client.Get(ctx, q.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return object.Object, nil
	}
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: q.Labels, FieldSelector: q.Fields})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
	})
	return list.UnstructuredContent(), nil
}

// resource is what kubectl finds by such a name.
func resource(kind string) (schema.GroupVersionResource, error) {
	resources := map[string]schema.GroupVersionResource{
		"csr":              {Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
		"csinode":          {Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"},
		"event":            {Version: "v1", Resource: "events"},
		"node":             {Version: "v1", Resource: "nodes"},
		"pdb":              {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		"pod":              {Version: "v1", Resource: "pods"},
		"quota":            {Version: "v1", Resource: "resourcequotas"},
		"vmi":              {Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"},
		"vmim":             {Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"},
		"volumeattachment": {Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"},
	}
	r, known := resources[kind]
	if !known {
		return r, fmt.Errorf("test/objects does not know the kind %q", kind)
	}
	return r, nil
}

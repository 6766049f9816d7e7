// Package objects reads Kubernetes' objects as kubectl get does, but in the test's process.
// A test reads again and again, and a new kubectl process each time would keep a core busy.
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

// Reader reads from one cluster. Its methods are safe for concurrent use.
type Reader struct{ client dynamic.Interface }

// New returns a Reader with the rights of a kubeconfig.
func New(kubeconfig string) (*Reader, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no client-side limit: tests poll, but they are no load
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Reader{client}, nil
}

// Read is like Get, but an error ends the test.
func (r *Reader) Read(t node.T, q Query) string {
	t.Helper()
	out, err := r.Get(t.Context(), q)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// Query describes what to read.
type Query struct {
	// Kind is the singular or short name of a resource that the function resource knows.
	Kind string
	// Namespace is "" for cluster-scoped objects.
	Namespace string
	// Name is the object's name. "" = a list of the objects that the selectors Labels and
	// Fields select, in the order of their creation.
	Name, Labels, Fields string
	// Path is the jsonpath template of what to return.
	Path string
}

// Get returns what kubectl get -o jsonpath prints, without the spaces around it. If the
// object does not exist, the error satisfies apierrors.IsNotFound.
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

// Find is like Get, but returns "" if the object does not exist.
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

// resource returns the resource that kubectl finds by this name.
func resource(kind string) (schema.GroupVersionResource, error) {
	resources := map[string]schema.GroupVersionResource{
		"csr":              {Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
		"csinode":          {Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"},
		"event":            {Version: "v1", Resource: "events"},
		"node":             {Version: "v1", Resource: "nodes"},
		"pdb":              {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		"pod":              {Version: "v1", Resource: "pods"},
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

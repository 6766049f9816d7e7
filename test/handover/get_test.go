//go:build !unit

package handover

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/jsonpath"
)

// resource is what kubectl finds by a short name.
func resource(kind string) schema.GroupVersionResource {
	switch kind {
	case "pod":
		return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	case "vmi":
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	default: // vmim
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"}
	}
}

// get is what kubectl get -o jsonpath prints of a pod, vmi or vmim, without a process:
// it is asked again and again.
func (w world) get(kind, name, path string) string {
	t := w.TB
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.api.Kubeconfig)
	if err != nil {
		t.Fatalf("%v", err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config) // client-go shares the connection
	if err != nil {
		t.Fatalf("%v", err)
	}
	object, err := client.Resource(resource(kind)).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s %s: %v", kind, name, err)
	}
	template := jsonpath.New(path).AllowMissingKeys(true)
	if err := template.Parse(path); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var out strings.Builder
	if err := template.Execute(&out, object.Object); err != nil {
		t.Fatalf("%s of %s %s: %v", path, kind, name, err)
	}
	return strings.TrimSpace(out.String())
}

package cluster

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
	case "pdb":
		return schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}
	case "vmi":
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	default: // vmim
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"}
	}
}

// Field is what kubectl get -o jsonpath prints of a pod, pdb, vmi or vmim, without a
// process: it is for what is asked again and again.
func (c Client) Field(t T, kind, namespace, name, path string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatalf("%v", err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config) // client-go shares the connection
	if err != nil {
		t.Fatalf("%v", err)
	}
	object, err := client.Resource(resource(kind)).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s %s/%s: %v", kind, namespace, name, err)
	}
	template := jsonpath.New(path).AllowMissingKeys(true)
	if err := template.Parse(path); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var out strings.Builder
	if err := template.Execute(&out, object.Object); err != nil {
		t.Fatalf("%s of %s %s/%s: %v", path, kind, namespace, name, err)
	}
	return strings.TrimSpace(out.String())
}

package drain

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// kubeVirt answers as an API server with KubeVirt does: its VMIs have no status subresource,
// and evacuate/cancel removes a mark. It serves a pending evacuation.
type kubeVirt struct {
	t     *testing.T
	marks string // what evacuate/cancel was asked to remove
	calls []string
	// quicker means that the controller has deleted the evacuation, and gone that the VMI is.
	quicker, gone bool
}

func (k *kubeVirt) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.calls = append(k.calls, r.Method+" "+r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	const vmis = "/apis/kubevirt.io/v1/namespaces/n/virtualmachineinstance"
	answer := any(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	switch r.Method + " " + r.URL.Path {
	case "GET " + vmis + "s/vm":
		if k.gone {
			k.notFound(w, r)
			return
		}
		answer = kubevirt.VirtualMachineInstance{}
	case "PUT /apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/vm/evacuate/cancel":
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			k.t.Error(err)
		}
		if k.gone {
			k.notFound(w, r)
			return
		}
		k.marks += string(raw)
		return // with 200, and without a body
	case "GET " + vmis + "migrations":
		m := kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "kubevirt-evacuation-x", UID: "u", ResourceVersion: "7", Annotations: map[string]string{kubevirt.EvacuationMigrationAnnotation: "node-a"},
		}, Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: "vm"}}
		answer = kubevirt.VirtualMachineInstanceMigrationList{Items: []kubevirt.VirtualMachineInstanceMigration{m}}
	case "DELETE " + vmis + "migrations/kubevirt-evacuation-x":
		if k.quicker {
			k.notFound(w, r)
			return
		}
	default:
		k.notFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		k.t.Error(err)
	}
}

func (k *kubeVirt) notFound(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusNotFound)
	if err := json.NewEncoder(w).Encode(apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true).Status()); err != nil {
		k.t.Error(err)
	}
}

// Given KubeVirt's VMIs, which have no status subresource. The mark is removed by KubeVirt's
// own request, and the pending evacuation is deleted.
func TestCancelBesideKubeVirt(t *testing.T) {
	api := &kubeVirt{t: t}
	server := httptest.NewServer(api)
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	known, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)
	if err := kubevirt.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"VirtualMachineInstance", "VirtualMachineInstanceMigration"} {
		mapper.Add(kubevirt.GroupVersion().WithKind(kind), meta.RESTScopeNamespace)
	}
	live, err := client.New(cfg, client.Options{Scheme: known, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	c := &command{Options: &Options{DryRun: dryRunNone}, cfg: cfg, scheme: known, live: live, show: newPrinter(Output{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}, outputJSON)}
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "v"}}
	vmi.Status.EvacuationNodeName = "node-a"
	if err := c.unmark(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if api.marks != `{"evacuationNodeName":"node-a"}` {
		t.Errorf("KubeVirt was asked to remove %q", api.marks)
	}
	if !slices.Contains(api.calls, "DELETE /apis/kubevirt.io/v1/namespaces/n/virtualmachineinstancemigrations/kubevirt-evacuation-x") {
		t.Errorf("the pending evacuation stays: %q", api.calls)
	}
	if c.DryRun = dryRunServer; c.unmark(t.Context(), vmi) != nil || api.marks != `{"evacuationNodeName":"node-a"}{"dryRun":["All"],"evacuationNodeName":"node-a"}` {
		t.Errorf("a dry run asked for %q", api.marks)
	}
	// When somebody else has deleted the migration, or the VMI, then there is nothing to take back.
	if api.quicker = true; c.unmark(t.Context(), vmi) != nil {
		t.Error("a migration that the controller has deleted makes cancel fail")
	}
	if api.gone = true; c.unmark(t.Context(), vmi) != nil {
		t.Error("a VMI that is gone makes cancel fail")
	}
}

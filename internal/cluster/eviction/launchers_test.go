package eviction

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
	"github.com/vmgrace/vmgrace/test/kit"
)

// made returns a launcher pod that names the VM, with these labels beside, and the owner.
func made(name string, labels map[string]string, owner string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: name, Annotations: map[string]string{kubevirt.DomainAnnotation: "vm"},
		Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp},
	}}
	for key, value := range labels {
		p.Labels[key] = value
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "uid-0"}}
	}
	return p
}

// Given a VMI, and pods in a namespace of many. When a launcher is made for it, then the API server
// lists no pods: the creation of one would be as slow as there are pods. It is refused beside one that
// lives, whoever has labelled that; what was restored from a backup is linked anew.
func TestWhatALauncherThatIsMadeIsAnswered(t *testing.T) {
	known := runtime.NewScheme()
	kit.Must(t, errors.Join(kubevirt.AddToScheme(known), corev1.AddToScheme(known)))
	by := func(uid string) map[string]string { return map[string]string{kubevirt.CreatedByLabel: uid} }
	restored := made("p", by("uid-0"), "")
	restored.Annotations[launcher.LinkedAnnotation] = "uid-0"
	gone := made("gone", nil, "")
	ended := made("other", by("uid-0"), "uid-0")
	ended.Status.Phase = corev1.PodSucceeded
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		other  *corev1.Pod // as the cache has it
		claim  string
		linked bool
		denied string
	}{
		"the first":               {made("p", nil, ""), nil, "", true, ""},
		"beside one that ended":   {made("p", nil, ""), ended, "", true, ""},
		"beside one that is gone": {made("p", nil, ""), gone, "", true, ""},
		"beside a former VMI's":   {made("p", nil, ""), made("other", by("uid-0"), "uid-0"), "", false, "launcher pod other of another VMI"},
		"beside one unlinked":     {made("p", nil, ""), made("other", nil, ""), "", false, "launcher pod other already"},
		"by hand, beside another": {made("p", by("uid-1"), ""), made("other", by("uid-1"), ""), "", false, "launcher pod other already"},
		"while another is made":   {made("p", nil, ""), nil, "q", false, "is getting launcher pod q"},
		"asked again":             {made("p", nil, ""), nil, "p", true, ""},
		"restored from a backup":  {restored, nil, "", true, ""},
	} {
		vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "uid-1"}}
		if vmi.Status.Phase = kubevirt.VMIPending; c.claim != "" {
			vmi.Status.Claim = &kubevirt.Claim{Pod: c.claim, At: metav1.Now()}
		}
		objects := []client.Object{vmi}
		if c.other != nil && c.other != gone {
			objects = append(objects, c.other)
		}
		live := fake.NewClientBuilder().WithScheme(known).WithObjects(objects...).WithStatusSubresource(vmi).WithInterceptorFuncs(interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("a list of the namespace")
			},
		}).Build()
		cached := fake.NewClientBuilder().WithScheme(known).WithIndex(&corev1.Pod{}, "domain", func(client.Object) []string { return []string{"vm"} })
		if c.other != nil {
			cached = cached.WithObjects(c.other.DeepCopy())
		}
		h := launchers{Config{Meter: metrics.New(prometheus.NewRegistry()), Live: live, Patch: live, Cached: cached.Build(), Log: slog.New(slog.DiscardHandler), Synced: func() bool { return true }}}
		raw, err := json.Marshal(c.pod)
		kit.Must(t, err)
		req := admission.Request{}
		req.Namespace, req.UID, req.Object.Raw = "n", "request", raw
		pod, _ := read(req)
		is, answer := h.linked(t.Context(), req, pod)
		if linked := is != nil && pod.Labels[kubevirt.CreatedByLabel] == "uid-1"; linked != c.linked {
			t.Errorf("%s: linked: %v (%+v)", name, linked, answer)
		}
		if denied := answer != nil && !answer.Allowed; denied != (c.denied != "") || denied && !strings.Contains(answer.Result.Message, c.denied) {
			t.Errorf("%s: %+v", name, answer)
		}
		kit.Must(t, live.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
		if c.linked && (vmi.Status.Claim == nil || vmi.Status.Claim.Pod != "p") {
			t.Errorf("%s: claimed by %+v", name, vmi.Status.Claim)
		}
	}
}

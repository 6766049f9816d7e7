package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// launchers sees to it that a launcher pod lives as long as its VM's shutdown
// may take.
type launchers struct {
	Config

	read reader
}

// Handle answers an AdmissionReview of a pod that is created. It stands in
// nobody's way: what cannot be done is a warning.
func (h *launchers) Handle(ctx context.Context, req admission.Request) admission.Response {
	ctx, cancel := within(ctx)
	defer cancel()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("the Pod cannot be read: %w", err))
	}
	p := facts(pod)
	if !p.OfVM() || p.VMIUID == "" {
		h.Meter.Launcher("not_ours")
		return admission.Allowed("")
	}
	vmi, err := h.read.vmi(ctx, client.ObjectKey{Namespace: req.Namespace, Name: p.VMI})
	switch {
	case err != nil:
		h.Meter.Launcher("failed")
		h.Log.Warn("a launcher pod is created with the grace period that it has: its VMI cannot be read", "namespace", req.Namespace, "vmi", p.VMI, "err", err)
		return admission.Allowed("").WithWarnings("vmgrace: the VMI cannot be read, terminationGracePeriodSeconds is left as it is: " + err.Error())
	case vmi == nil || string(vmi.UID) != p.VMIUID:
		h.Meter.Launcher("not_ours")
		return admission.Allowed("")
	}
	set := h.Settings.Get()
	g := evacuation.GraceFor(vmi, pod.Spec.TerminationGracePeriodSeconds, &set)
	changed, err := patched(req.Object.Raw, g.Seconds, annotations(pod, g))
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	response := admission.PatchResponseFromRaw(req.Object.Raw, changed)
	h.Meter.Launcher(result(pod, g))
	if !seenByEvictions(pod) {
		response = response.WithWarnings("vmgrace: a launcher pod whose name does not begin with " + kubevirt.LauncherPrefix + " can be evicted without its VM being moved")
	}
	return response
}

func result(pod *corev1.Pod, g evacuation.LauncherGrace) string {
	if stated := pod.Spec.TerminationGracePeriodSeconds; stated != nil && *stated == g.Seconds {
		return "long_enough"
	}
	return "padded"
}

// annotations are those that the pod is to be made with.
func annotations(pod *corev1.Pod, g evacuation.LauncherGrace) map[string]string {
	all := map[string]string{}
	if _, has := pod.Annotations[kubevirt.RequestEvictOnlyAnnotation]; !has {
		all[kubevirt.RequestEvictOnlyAnnotation] = "" // the descheduler evicts it, and does not count it as gone
	}
	maps.Copy(all, g.Annotations)
	return all
}

// seenByEvictions: an Eviction carries nothing of the pod but its name.
func seenByEvictions(p *corev1.Pod) bool {
	name := p.Name
	if name == "" {
		name = p.GenerateName
	}
	return strings.HasPrefix(name, kubevirt.LauncherPrefix)
}

// patched changes the fields in question and no others: the API server may have
// more fields than the type here.
func patched(raw []byte, graceSeconds int64, annotations map[string]string) ([]byte, error) {
	var pod map[string]json.RawMessage
	if err := json.Unmarshal(raw, &pod); err != nil {
		return nil, err
	}
	if err := set(pod, "spec", "terminationGracePeriodSeconds", graceSeconds); err != nil {
		return nil, err
	}
	if len(annotations) == 0 {
		return json.Marshal(pod)
	}
	var meta map[string]json.RawMessage
	if err := json.Unmarshal(pod["metadata"], &meta); err != nil {
		return nil, err
	}
	for key, value := range annotations {
		if err := set(meta, "annotations", key, value); err != nil {
			return nil, err
		}
	}
	var err error
	if pod["metadata"], err = json.Marshal(meta); err != nil {
		return nil, err
	}
	return json.Marshal(pod)
}

// set sets a field of an object's object.
func set(object map[string]json.RawMessage, name, field string, value any) error {
	inner := map[string]json.RawMessage{}
	if len(object[name]) > 0 {
		if err := json.Unmarshal(object[name], &inner); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	var err error
	if inner[field], err = json.Marshal(value); err != nil {
		return err
	}
	object[name], err = json.Marshal(inner)
	return err
}

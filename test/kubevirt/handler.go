package kubevirt

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// again is how long virt-handler waits before it asks a guest again.
const again = 5 * time.Second

// handler is virt-handler on one node.
type handler struct {
	*cluster
	node string
	pods string // kubelet's directory of pods
	// asked is when the guest of a launcher, by the pod's UID, was asked first and last.
	asked map[string]*asking
}

type asking struct{ first, last time.Time }

// RunHandler is virt-handler on a node until ctx ends. pods is kubelet's directory of pods.
func RunHandler(ctx context.Context, log *slog.Logger, node, pods string) error {
	c, err := connect(log)
	if err != nil {
		return err
	}
	h := &handler{cluster: c, node: node, pods: pods, asked: map[string]*asking{}}
	c.every(ctx, h.look)
	return nil
}

func (h *handler) look(ctx context.Context) error {
	vmis, err := h.vmis(ctx)
	if err != nil {
		return err
	}
	launchers, err := h.launchers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range vmis {
		pod := launchers.of(v).at(h.node)
		if pod == nil || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		switch {
		case v.node() == h.node:
			errs = append(errs, h.source(ctx, v, pod))
		case v.move("targetPod") == pod.Name && !v.moved():
			errs = append(errs, h.target(ctx, v, pod))
		case v.move("sourcePod") == pod.Name && v.moved():
			errs = append(errs, quit(ctx, h.monitor(pod))) // as libvirt does, once the target has all
		}
	}
	return errors.Join(errs...)
}

func (h *handler) sockets(pod *corev1.Pod) string {
	return filepath.Join(h.pods, string(pod.UID), "volumes/kubernetes.io~empty-dir/sockets")
}

func (h *handler) monitor(pod *corev1.Pod) string { return filepath.Join(h.sockets(pod), "qmp") }

// source does what the VMI's own node does.
func (h *handler) source(ctx context.Context, v *vmi, pod *corev1.Pod) error {
	_, err := os.Stat(filepath.Join(h.sockets(pod), "signalled"))
	if signalled := err == nil; v.phase() == "Running" && (signalled || v.deleted()) {
		if err := h.shutDown(ctx, v, pod); err != nil {
			return err
		}
	}
	switch {
	case v.phase() == "Scheduled":
		return h.started(ctx, v, pod)
	case v.move("sourcePod") == pod.Name && v.has("status", "migrationState", "targetNodeAddress") && !v.moved():
		return h.send(ctx, v, pod)
	}
	return nil
}

// shutDown asks the guest, again and again, and destroys it after its grace period.
func (h *handler) shutDown(ctx context.Context, v *vmi, pod *corev1.Pod) error {
	a := h.asked[string(pod.UID)]
	if a == nil {
		a = &asking{first: time.Now()}
		h.asked[string(pod.UID)] = a
	}
	switch {
	case time.Since(a.first) >= time.Duration(v.grace())*time.Second:
		return quit(ctx, h.monitor(pod))
	case time.Since(a.last) < again:
		return nil
	}
	a.last = time.Now()
	h.log.Info("the guest is asked", "vmi", v.GetName())
	return execute(ctx, h.monitor(pod), "system_powerdown", nil, nil)
}

// started reports a guest that runs.
func (h *handler) started(ctx context.Context, v *vmi, pod *corev1.Pod) error {
	if status, err := run(ctx, h.monitor(pod)); err != nil || status != "running" {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(v.Object, "status", "conditions")
	for _, kind := range []string{"Ready", "LiveMigratable", "StorageLiveMigratable"} {
		conditions = append(conditions, map[string]any{"type": kind, "status": "True", "lastProbeTime": nil, "lastTransitionTime": now()})
	}
	v.set(conditions, "status", "conditions")
	v.set("Running", "status", "phase")
	return h.Update(ctx, v.Unstructured)
}

// send begins the migration of a guest whose target listens, and reports a failure.
func (h *handler) send(ctx context.Context, v *vmi, pod *corev1.Pod) error {
	if !v.has("status", "migrationState", "startTimestamp") {
		to := "tcp:" + v.move("targetNodeAddress") + ":" + port
		if err := execute(ctx, h.monitor(pod), "migrate", map[string]any{"uri": to}, nil); err != nil {
			return err
		}
		v.set(now(), "status", "migrationState", "startTimestamp")
		return h.Update(ctx, v.Unstructured)
	}
	var is struct {
		Status string
		Error  string `json:"error-desc"`
	}
	if err := execute(ctx, h.monitor(pod), "query-migrate", nil, &is); err != nil {
		return err
	}
	if is.Status == "failed" || is.Status == "cancelled" {
		v.set(true, "status", "migrationState", "failed")
		v.set(true, "status", "migrationState", "completed")
		v.set(is.Error, "status", "migrationState", "failureReason")
		v.set(now(), "status", "migrationState", "endTimestamp")
		return h.Update(ctx, v.Unstructured)
	}
	return nil
}

// target says where the target listens, and takes the VMI over once its guest runs here.
func (h *handler) target(ctx context.Context, v *vmi, pod *corev1.Pod) error {
	status, err := run(ctx, h.monitor(pod))
	switch {
	case err != nil:
		return err
	case status == "inmigrate" && !v.has("status", "migrationState", "targetNodeAddress"):
		v.set(pod.Status.PodIP, "status", "migrationState", "targetNodeAddress")
		return h.Update(ctx, v.Unstructured)
	case status != "running":
		return nil
	}
	v.set(true, "status", "migrationState", "targetNodeDomainDetected")
	v.set(true, "status", "migrationState", "completed")
	v.set(now(), "status", "migrationState", "endTimestamp")
	v.set(h.node, "status", "nodeName")
	v.remove("status", "evacuationNodeName")
	v.label("kubevirt.io/nodeName", h.node)
	h.log.Info("the guest has arrived", "vmi", v.GetName())
	return h.Update(ctx, v.Unstructured)
}

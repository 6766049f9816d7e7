package kubevirt

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// often is how long a role waits between two looks.
const often = 100 * time.Millisecond

// object is one of KubeVirt's as the API server has it, with every field that this package
// does not know.
type object struct{ *unstructured.Unstructured }

func (o object) text(path ...string) string {
	text, _, _ := unstructured.NestedString(o.Object, path...) // of another type: as if absent
	return text
}

func (o object) has(path ...string) bool {
	_, there, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	return there && err == nil
}

// set makes what is missing of the path.
func (o object) set(value any, path ...string) {
	last, at := len(path)-1, o.Object
	for _, name := range path[:last] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	at[path[last]] = value
}

func (o object) remove(path ...string) { unstructured.RemoveNestedField(o.Object, path...) }

func (o object) label(key, value string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	o.SetLabels(labels)
}

type vmi struct{ object }

func (v *vmi) phase() string         { return v.text("status", "phase") }
func (v *vmi) node() string          { return v.text("status", "nodeName") }
func (v *vmi) deleted() bool         { return v.GetDeletionTimestamp() != nil }
func (v *vmi) ended() bool           { return v.phase() == "Succeeded" || v.phase() == "Failed" }
func (v *vmi) move(of string) string { return v.text("status", "migrationState", of) }
func (v *vmi) moved() bool           { return v.has("status", "migrationState", "completed") }
func (v *vmi) cpu() string           { return v.text("spec", "domain", "resources", "requests", "cpu") }

func (v *vmi) kernelArgs() string {
	return v.text("spec", "domain", "firmware", "kernelBoot", "kernelArgs")
}

func (v *vmi) grace() int64 {
	seconds, _, _ := unstructured.NestedInt64(v.Object, "spec", "terminationGracePeriodSeconds")
	return seconds
}

func (v *vmi) nodeSelector() map[string]string {
	labels, _, _ := unstructured.NestedStringMap(v.Object, "spec", "nodeSelector")
	return labels
}

// is tells whether a condition of the VMI is True.
func (v *vmi) is(condition string) bool {
	list, _, _ := unstructured.NestedSlice(v.Object, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		has, ok := c.(map[string]any)
		return ok && has["type"] == condition && has["status"] == "True"
	})
}

// marked tells whether an eviction has asked for the VMI to leave its node.
func (v *vmi) marked() bool { return v.text("status", "evacuationNodeName") != "" }

type migration struct{ object }

func (m *migration) phase() string { return m.text("status", "phase") }
func (m *migration) ended() bool   { return m.phase() == "Succeeded" || m.phase() == "Failed" }

// cluster is the API server with the rights of one role.
type cluster struct {
	client.Client
	log *slog.Logger
}

func connect(log *slog.Logger) (*cluster, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &cluster{c, log}, nil
}

// every calls look again and again until ctx ends. Somebody else's write at the same time is
// nothing to report.
func (c *cluster) every(ctx context.Context, look func(context.Context) error) {
	for tick := time.NewTicker(often); ctx.Err() == nil; <-tick.C {
		if err := look(ctx); err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
			c.log.Warn("look", "err", err)
		}
	}
}

func (c *cluster) list(ctx context.Context, kind string) ([]object, error) {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("kubevirt.io/v1")
	list.SetKind(kind + "List")
	if err := c.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list of %s: %w", kind, err)
	}
	all := make([]object, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, object{&list.Items[i]})
	}
	return all, nil
}

func (c *cluster) vmis(ctx context.Context) ([]*vmi, error) {
	objects, err := c.list(ctx, "VirtualMachineInstance")
	all := make([]*vmi, 0, len(objects))
	for _, o := range objects {
		all = append(all, &vmi{o})
	}
	return all, err
}

// launchers returns the launcher pods of the cluster. Those that have ended are among them.
func (c *cluster) launchers(ctx context.Context) (pods, error) {
	list := &corev1.PodList{}
	if err := c.List(ctx, list, client.MatchingLabels{"kubevirt.io": "virt-launcher"}); err != nil {
		return nil, fmt.Errorf("list of launchers: %w", err)
	}
	return list.Items, nil
}

type pods []corev1.Pod

// of returns the launchers of a VMI that have not ended.
func (all pods) of(v *vmi) (its pods) {
	for _, p := range all {
		if p.Labels[createdBy] == string(v.GetUID()) && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			its = append(its, p)
		}
	}
	return its
}

// at returns the launcher on a node, nil if none is there.
func (all pods) at(node string) *corev1.Pod {
	for i := range all {
		if all[i].Spec.NodeName == node {
			return &all[i]
		}
	}
	return nil
}

//go:build !unit

package rig

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

const (
	// PodRuns is the status of a pod that is ready.
	PodRuns = `{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"PodScheduled","status":"True"}]}`
	// NodeReady is the status of a node that is Ready.
	NodeReady = `{"conditions":[{"type":"Ready","status":"True"}]}`
)

// Space is a namespace in which a test makes and reads objects.
type Space struct {
	*Rig

	NS string
	t  T
}

// In returns a namespace that exists.
func (r *Rig) In(t T, namespace string) Space { return Space{r, namespace, t} }

// Namespace makes a namespace for one test.
func (r *Rig) Namespace(t T) Space {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	kit.Must(t, r.Create(t.Context(), ns))
	s := r.In(t, ns.Name)
	t.Cleanup(s.tidy)
	return s
}

// tidy deletes what would count for the limits of other tests.
func (s Space) tidy() {
	ctx := After(s.t)
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := s.List(ctx, &all, client.InNamespace(s.NS)); err != nil {
		s.t.Errorf("tidy: %v", err)
	}
	for i := range all.Items {
		_ = s.Patch(ctx, &all.Items[i], Merge(`{"metadata":{"finalizers":null}}`))
	}
	for _, o := range []client.Object{&kubevirt.VirtualMachineInstanceMigration{}, &kubevirt.VirtualMachineInstance{}, &kubevirt.KubeVirt{}, &corev1.Pod{}} {
		if err := s.DeleteAllOf(ctx, o, client.InNamespace(s.NS), client.GracePeriodSeconds(0)); err != nil {
			s.t.Errorf("tidy: %v", err)
		}
	}
}

// After returns a context for the cleanup after a test.
func After(t T) context.Context { return context.WithoutCancel(t.Context()) }

// Make makes an object and gives it a status, unless that is "". The object is deleted with
// the test.
func (s Space) Make(o client.Object, status string) {
	s.t.Helper()
	if err := s.TryMake(s.t.Context(), o, status); err != nil {
		s.t.Fatalf("make %T %s: %v", o, o.GetName(), err)
	}
	s.t.Cleanup(func() { _ = s.Delete(After(s.t), o, client.GracePeriodSeconds(0)) })
}

// TryMake is Make for any goroutine. It does not delete the object.
func (r *Rig) TryMake(ctx context.Context, o client.Object, status string) error {
	if err := r.Create(ctx, o); err != nil || status == "" {
		return err
	}
	return r.Status().Patch(ctx, o, Merge(`{"status":%s}`, status))
}

// SetStatus merges JSON into the status of an object.
func (s Space) SetStatus(o client.Object, status string) {
	s.t.Helper()
	kit.Must(s.t, s.Status().Patch(s.t.Context(), o, Merge(`{"status":%s}`, status)))
}

// Change merges JSON into an object.
func (s Space) Change(o client.Object, change string) {
	s.t.Helper()
	kit.Must(s.t, s.Patch(s.t.Context(), o, Merge("%s", change)))
}

// Merge returns a merge patch.
func Merge(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}

// object is a pointer to a type of Kubernetes objects.
type object[O any] interface {
	*O
	client.Object
}

// Find reads an object and returns nil if it does not exist.
func Find[O any, P object[O]](s Space, name string) P {
	s.t.Helper()
	o := P(new(O))
	err := s.Get(s.t.Context(), client.ObjectKey{Namespace: s.NS, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	kit.Must(s.t, err)
	return o
}

// Read is Find for an object that must exist.
func Read[O any, P object[O]](s Space, name string) P {
	s.t.Helper()
	o := Find[O, P](s, name)
	if o == nil {
		s.t.Fatalf("%T %s is not there", o, name)
	}
	return o
}

// Migrations returns the migrations of the namespace.
func (s Space) Migrations() []kubevirt.VirtualMachineInstanceMigration {
	s.t.Helper()
	var all kubevirt.VirtualMachineInstanceMigrationList
	kit.Must(s.t, s.List(s.t.Context(), &all, client.InNamespace(s.NS)))
	return all.Items
}

// Migrate makes a migration, as a user does.
func (s Space) Migrate(name, vmi string) *kubevirt.VirtualMachineInstanceMigration {
	s.t.Helper()
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: name}}
	m.Spec.VMIName = vmi
	s.Make(m, "")
	return m
}

// VM makes a VMI with this status on a node, and its launcher pod, which runs.
func (s Space) VM(name, node string, strategy kubevirt.EvictionStrategy, status string, change ...func(*corev1.Pod)) *kubevirt.VirtualMachineInstance {
	s.t.Helper()
	v := s.VMI(name, node, strategy)
	s.Make(v, status)
	p := s.Launcher(v, node)
	for _, c := range change {
		c(p)
	}
	s.Make(p, PodRuns)
	return v
}

// VMI returns a VMI that is not made yet. Without a name, the API server generates one.
func (s Space) VMI(name, node string, strategy kubevirt.EvictionStrategy) *kubevirt.VirtualMachineInstance {
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.NS, Name: name, GenerateName: "vm-", Labels: map[string]string{kubevirt.NodeNameLabel: node},
	}}
	if strategy != "" {
		v.Spec.EvictionStrategy = &strategy
	}
	return v
}

// Launcher returns the launcher pod of a VMI. It is not made yet.
func (s Space) Launcher(v *kubevirt.VirtualMachineInstance, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.NS, Name: "virt-launcher-" + v.Name,
			Labels:      map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: string(v.UID)},
			Annotations: map[string]string{kubevirt.DomainAnnotation: v.Name},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

// Taint replaces the taints of a node by those with these keys, added now.
func (s Space) Taint(node string, keys ...string) {
	s.t.Helper()
	var taints []string
	for _, key := range keys {
		taints = append(taints, fmt.Sprintf(`{"key":%q,"effect":"NoSchedule","timeAdded":%q}`, key, time.Now().UTC().Format(time.RFC3339)))
	}
	s.Change(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, `{"spec":{"taints":[`+strings.Join(taints, ",")+`]}}`)
}

// Package index finds the objects that belong to a VM: its launcher pods, migrations and
// disruption budgets, and the VMs of a node. Unless stated otherwise it reads the cache and
// returns copies, which may be stale. Safe for concurrent use.
package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Names of the cache's indexes.
const (
	byCreator = "createdBy" // launcher pods: the VMI's UID
	byVMI     = "vmiName"   // migrations
	byMaker   = "madeBy"    // budgets of other owners
	byOwner   = "vmiOwner"  // budgets: the name of the VMI that owns them
	byNode    = "nodeName"  // VMIs
	byDomain  = "domain"    // launcher pods: the name of the VMI that they name

	unfinished = "unfinished" // migrations
)

// yes is the value of unfinished, which only some migrations have.
const yes = "yes"

// foreign is byMaker's value of budgets of other owners.
const foreign = "foreign"

// Add adds the indexes of all lookups to the cache.
func Add(ctx context.Context, i client.FieldIndexer) error {
	return errors.Join(
		AddVMs(ctx, i),
		i.IndexField(ctx, &policyv1.PodDisruptionBudget{}, byMaker, func(o client.Object) []string {
			if BudgetOf(o) == "" {
				return []string{foreign}
			}
			return nil
		}),
		i.IndexField(ctx, &policyv1.PodDisruptionBudget{}, byOwner, func(o client.Object) []string {
			if owner := VMIOf(o); owner != nil && BudgetOf(o) != "" {
				return []string{owner.Name}
			}
			return nil
		}),
	)
}

// AddNaming adds the index of Naming to the cache.
func AddNaming(ctx context.Context, i client.FieldIndexer) error {
	return i.IndexField(ctx, &corev1.Pod{}, byDomain, func(o client.Object) []string { return []string{o.GetAnnotations()[kubevirt.DomainAnnotation]} })
}

// AddVMs adds the indexes of VMs, launchers and migrations: the cache then watches no
// disruption budgets.
func AddVMs(ctx context.Context, i client.FieldIndexer) error {
	return errors.Join(
		i.IndexField(ctx, &corev1.Pod{}, byCreator, func(o client.Object) []string { return []string{o.GetLabels()[kubevirt.CreatedByLabel]} }),
		i.IndexField(ctx, &kubevirt.VirtualMachineInstanceMigration{}, unfinished, func(o client.Object) []string {
			if m, ok := o.(*kubevirt.VirtualMachineInstanceMigration); ok && !m.Final() {
				return []string{yes}
			}
			return nil
		}),
		i.IndexField(ctx, &kubevirt.VirtualMachineInstanceMigration{}, byVMI, func(o client.Object) []string {
			if m, ok := o.(*kubevirt.VirtualMachineInstanceMigration); ok {
				return []string{m.Spec.VMIName}
			}
			return nil
		}),
		i.IndexField(ctx, &kubevirt.VirtualMachineInstance{}, byNode, func(o client.Object) []string {
			if vmi, ok := o.(*kubevirt.VirtualMachineInstance); ok {
				return []string{vmi.Node()}
			}
			return nil
		}),
	)
}

// BudgetOf returns the UID of the VMI that a disruption budget was made for. It is in the
// budget's name, which is immutable, or in its owner if an older controller named it. It is
// empty for a budget of another owner.
func BudgetOf(o client.Object) types.UID {
	uid, ok := strings.CutPrefix(o.GetName(), evacuation.BudgetPrefix)
	if !ok {
		return ""
	}
	if len(uid) == len("00000000-0000-0000-0000-000000000000") {
		return types.UID(uid)
	}
	if owner := VMIOf(o); owner != nil {
		return owner.UID
	}
	return ""
}

// VMIOf returns the owner reference of an object to a VMI, nil if there is none.
func VMIOf(o client.Object) *metav1.OwnerReference {
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == "VirtualMachineInstance" && strings.HasPrefix(owner.APIVersion, kubevirt.Group+"/") {
			return &owner
		}
	}
	return nil
}

// Launchers returns a VM's launcher pods that have not ended, from the cache.
func Launchers(ctx context.Context, r client.Reader, vmi *kubevirt.VirtualMachineInstance, more ...client.ListOption) ([]corev1.Pod, error) {
	return launchers(ctx, r, vmi, append(more, client.MatchingFields{byCreator: string(vmi.UID)})...)
}

// LaunchersNow returns a VM's launcher pods that have not ended, from the API server.
func LaunchersNow(ctx context.Context, live client.Reader, vmi *kubevirt.VirtualMachineInstance) ([]corev1.Pod, error) {
	return launchers(ctx, live, vmi, client.MatchingLabels{kubevirt.CreatedByLabel: string(vmi.UID)})
}

func launchers(ctx context.Context, r client.Reader, vmi *kubevirt.VirtualMachineInstance, which ...client.ListOption) ([]corev1.Pod, error) {
	var all corev1.PodList
	if err := r.List(ctx, &all, append(which, client.InNamespace(vmi.Namespace))...); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return Ended(&p) }), nil
}

// Unspent returns the launchers without those that are being deleted and certainly run no guest,
// by the VM's migrations.
func Unspent(launchers []corev1.Pod, migrations []kubevirt.VirtualMachineInstanceMigration) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(launchers), func(p corev1.Pod) bool {
		return migration.Spent(&migration.Pod{Name: p.Name, UID: string(p.UID), Deleting: p.DeletionTimestamp != nil}, migrations)
	})
}

// Ended reports whether a pod's containers have ended for good.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Budgets returns the disruption budgets of a VMI, found by name or by owner.
func Budgets(ctx context.Context, r client.Reader, vmi *kubevirt.VirtualMachineInstance) ([]policyv1.PodDisruptionBudget, error) {
	all, err := BudgetsByName(ctx, r, client.ObjectKeyFromObject(vmi))
	if err != nil {
		return nil, err
	}
	name := evacuation.BudgetName(string(vmi.UID))
	all = slices.DeleteFunc(all, func(b policyv1.PodDisruptionBudget) bool { return BudgetOf(&b) != vmi.UID || b.Name == name })
	var ours policyv1.PodDisruptionBudget
	switch err := r.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: name}, &ours); {
	case err == nil:
		return append(all, ours), nil
	case apierrors.IsNotFound(err):
		return all, nil
	default:
		return nil, fmt.Errorf("disruption budget %s: %w", name, err)
	}
}

// BudgetsByName returns the disruption budgets of all VMIs with a name, including deleted
// ones.
func BudgetsByName(ctx context.Context, r client.Reader, vm types.NamespacedName) ([]policyv1.PodDisruptionBudget, error) {
	var all policyv1.PodDisruptionBudgetList
	if err := r.List(ctx, &all, client.InNamespace(vm.Namespace), client.MatchingFields{byOwner: vm.Name}); err != nil {
		return nil, fmt.Errorf("disruption budgets: %w", err)
	}
	return all.Items, nil
}

// Selected returns requests for the VMs whose launchers a budget selects.
func Selected(ctx context.Context, r client.Reader, b *policyv1.PodDisruptionBudget) []reconcile.Request {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range pods.Items {
		out = append(out, OfPod(ctx, &pods.Items[i])...)
	}
	return out
}

// Gone reports whether err proves that this object does not exist. The 404 of a proxy or of
// a kind that is not served does not name the object, or has the cause
// UnexpectedServerResponse.
func Gone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return status.Status().Details.Name == name && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// ForeignBudgets returns a namespace's disruption budgets of other owners.
func ForeignBudgets(ctx context.Context, r client.Reader, namespace string) ([]policyv1.PodDisruptionBudget, error) {
	var all policyv1.PodDisruptionBudgetList
	if err := r.List(ctx, &all, client.InNamespace(namespace), client.MatchingFields{byMaker: foreign}); err != nil {
		return nil, fmt.Errorf("disruption budgets: %w", err)
	}
	return all.Items, nil
}

// Policy reads the EvacuationPolicy, nil if there is none.
func Policy(ctx context.Context, r client.Reader) (*v1alpha1.EvacuationPolicy, error) {
	policy := &v1alpha1.EvacuationPolicy{}
	switch err := r.Get(ctx, client.ObjectKey{Name: v1alpha1.Name}, policy); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("EvacuationPolicy: %w", err)
	default:
		return policy, nil
	}
}

// OfNode returns requests for the VMs of a node.
func OfNode(r client.Reader) handler.MapFunc {
	return func(ctx context.Context, node client.Object) []reconcile.Request {
		return requests(ctx, r, client.MatchingFields{byNode: node.GetName()})
	}
}

// All returns requests for all VMs, whatever the object is.
func All(r client.Reader) handler.MapFunc {
	return func(ctx context.Context, _ client.Object) []reconcile.Request { return requests(ctx, r) }
}

// OfPod returns the request for the VM of a launcher pod.
func OfPod(_ context.Context, pod client.Object) []reconcile.Request {
	return named(pod.GetNamespace(), pod.GetAnnotations()[kubevirt.DomainAnnotation])
}

// OfMigration returns the request for the VM of a migration.
func OfMigration(_ context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*kubevirt.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return named(m.Namespace, m.Spec.VMIName)
}

func named(namespace, name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

func requests(ctx context.Context, r client.Reader, which ...client.ListOption) []reconcile.Request {
	var all kubevirt.VirtualMachineInstanceList
	if err := r.List(ctx, &all, append(which, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil // cannot fail: the cache has started, or there would be no event
	}
	out := make([]reconcile.Request, 0, len(all.Items))
	for i := range all.Items {
		out = append(out, named(all.Items[i].Namespace, all.Items[i].Name)...)
	}
	return out
}

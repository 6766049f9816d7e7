package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// watched is a kind with an informer. Without the right to read an optional kind the
// drain works, and shows less.
type watched struct {
	object   client.Object
	list     client.ObjectList
	optional bool
}

func kinds() []watched {
	return []watched{
		{&corev1.Pod{}, &corev1.PodList{}, false},
		{&corev1.Node{}, &corev1.NodeList{}, false},
		{&storagev1.VolumeAttachment{}, &storagev1.VolumeAttachmentList{}, false},
		{&policyv1.PodDisruptionBudget{}, &policyv1.PodDisruptionBudgetList{}, false},
		{&kubevirt.VirtualMachineInstance{}, &kubevirt.VirtualMachineInstanceList{}, true},
		{&kubevirt.VirtualMachineInstanceMigration{}, &kubevirt.VirtualMachineInstanceMigrationList{}, true},
	}
}

// newStore returns a cache of the objects that concern the node. It has no informers
// before startWatches.
func (c *command) newStore(name string) (cache.Cache, error) {
	return cache.New(c.cfg, cache.Options{
		Scheme: c.scheme, ReaderFailOnMissingInformer: true, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:  {Field: fields.OneTermEqualSelector("spec.nodeName", name)},
			&corev1.Node{}: {Field: fields.OneTermEqualSelector("metadata.name", name)},
		},
	})
}

// startWatches starts the informers, and returns once they are synced. It lists each
// kind first: an informer would retry for ever without the right to read the kind.
func (n *node) startWatches(ctx context.Context) error {
	if err := n.watch(ctx, n.targets, &corev1.Pod{}); err != nil {
		return err
	}
	for _, k := range kinds() {
		err := n.live.List(ctx, k.list, client.Limit(1))
		if k.optional && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err)) {
			continue // a cluster without VMs
		}
		if k.optional && apierrors.IsForbidden(err) {
			n.show.warn(n.name, fmt.Sprintf("the progress of VMs is not shown: %v", err))
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read what the drain depends on: %w", err)
		}
		if err := n.watch(ctx, n.store, k.object); err != nil {
			return err
		}
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !n.store.WaitForCacheSync(bound) || !n.targets.WaitForCacheSync(bound) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("the API server did not list all objects within %v", callTimeout)
	}
	return nil
}

// watch starts the informer of a kind: its changes wake the loop.
func (n *node) watch(ctx context.Context, store cache.Cache, kind client.Object) error {
	informer, err := store.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.wake() }, UpdateFunc: func(any, any) { n.wake() }, DeleteFunc: func(any) { n.wake() },
	}); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// wake triggers the loop. The loop reads the whole state from the cache, so several
// changes may be merged into one trigger.
func (n *node) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// cachedList lists a kind from the node's cache.
func cachedList[L client.ObjectList](ctx context.Context, n *node, list L) (L, error) {
	return listCached(ctx, n.store, list)
}

// listCached lists a kind from a cache. The list is empty if the kind has no informer.
// The objects must not be changed.
func listCached[L client.ObjectList](ctx context.Context, store client.Reader, list L) (L, error) {
	err := store.List(ctx, list, client.UnsafeDisableDeepCopy)
	var none *cache.ErrResourceNotCached
	if errors.As(err, &none) {
		return list, nil
	}
	return list, err
}

// facts collects the facts for the plan, and the pods on the node.
func (n *node) facts(ctx context.Context) (*drain.Facts, []corev1.Pod, error) {
	f := &drain.Facts{Now: time.Now(), Pods: map[string]drain.PodFacts{}, Claims: map[string]int{}, Here: map[string]bool{}, Elsewhere: map[string]bool{}}
	var err error
	if f.NodeGone, err = n.readAttachments(ctx, f); err != nil || f.NodeGone {
		return f, nil, err
	}
	pods, err := cachedList(ctx, n, &corev1.PodList{})
	if err != nil {
		return nil, nil, err
	}
	budgets, err := cachedList(ctx, n, &policyv1.PodDisruptionBudgetList{})
	if err != nil {
		return nil, nil, err
	}
	vms, err := n.vms(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		f.Pods[string(p.UID)] = drain.PodFacts{
			Ended: Ended(p), Deleting: p.DeletionTimestamp != nil, KillAt: podOf(p).DeletedAt,
			BudgetFree: allowsDisruption(budgetsSelecting(budgets.Items, p)), VM: vmOf(vms, p),
		}
		if !Ended(p) {
			for claim := range claims(p) {
				f.Claims[claim]++
			}
		}
	}
	return f, pods.Items, nil
}

// readAttachments fills in where volumes are attached, and reports whether the node is
// gone. Only a read from the API server proves that.
func (n *node) readAttachments(ctx context.Context, f *drain.Facts) (gone bool, err error) {
	node := &corev1.Node{}
	err = n.store.Get(ctx, client.ObjectKey{Name: n.name}, node)
	if apierrors.IsNotFound(err) {
		err = n.live.Get(ctx, client.ObjectKey{Name: n.name}, node)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
	}
	if err != nil {
		return false, err
	}
	if node.UID != n.uid {
		return true, nil // another node of the same name
	}
	for _, v := range node.Status.VolumesAttached {
		if name := n.handles[string(v.Name)]; name != "" {
			f.Here[name] = true
		}
	}
	for _, v := range node.Status.VolumesInUse {
		if name := n.handles[string(v)]; name != "" {
			f.Here[name] = true
		}
	}
	all, err := cachedList(ctx, n, &storagev1.VolumeAttachmentList{})
	if err != nil {
		return false, err
	}
	for i := range all.Items {
		switch a := &all.Items[i]; {
		case a.Spec.Source.PersistentVolumeName == nil: // an inline volume has no claim
		case a.Spec.NodeName == n.name:
			f.Here[*a.Spec.Source.PersistentVolumeName] = true
		case a.Status.Attached:
			f.Elsewhere[*a.Spec.Source.PersistentVolumeName] = true
		}
	}
	return false, nil
}

// budgetsSelecting returns the budgets that select a pod.
func budgetsSelecting(all []policyv1.PodDisruptionBudget, p *corev1.Pod) (some []policyv1.PodDisruptionBudget) {
	for i := range all {
		if all[i].Namespace != p.Namespace {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(all[i].Spec.Selector)
		if err == nil && s.Matches(labels.Set(p.Labels)) {
			some = append(some, all[i])
		}
	}
	return some
}

// allowsDisruption reports whether no budget refuses a disruption.
func allowsDisruption(budgets []policyv1.PodDisruptionBudget) bool {
	for i := range budgets {
		if budgets[i].Status.DisruptionsAllowed <= 0 {
			return false
		}
	}
	return true
}

package move

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Evictions moves VMs in clusters with KubeVirt by asking for their launchers' evictions: its webhook
// refuses these, marks the VM, and migrates it before those that users move. Where no such webhook
// answers it moves them as Migrations does.
type Evictions struct{ Migrations }

// The words of KubeVirt's webhook for a VM that it has marked, and for one that was marked.
const (
	triggered  = "Eviction triggered evacuation"
	inProgress = "Evacuation in progress"
)

// askWithin bounds a request that webhooks of others answer: each may take 10 s.
const askWithin = 25 * time.Second

// never is the version of no object. With it as precondition the API server asks all webhooks
// about an eviction and then refuses it: a VM is not stopped, whatever they answer.
const never = "0"

// Move has KubeVirt move a VM. Its errors are those of Migrations.Move.
func (m Evictions) Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	v, err := m.Observer.Observe(ctx, vmi)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(v.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == vmi.Node() })
	if at >= 0 && v.MovedByEviction() {
		if asked, err := m.ask(ctx, &v.Pods[at]); asked || err != nil {
			return err
		}
	}
	return m.Migrations.Move(ctx, vmi, why)
}

// ask asks for the eviction of a launcher. It returns false where nobody moves the VM instead,
// and an error where that is not known.
func (m Evictions) ask(ctx context.Context, launcher *corev1.Pod) (asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: launcher.Namespace, Name: launcher.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &launcher.UID, ResourceVersion: new(never)}},
	}
	err = m.Client.SubResource("eviction").Create(ctx, launcher.DeepCopy(), eviction)
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return false, nil
	case apierrors.IsTooManyRequests(err) && (strings.Contains(err.Error(), triggered) || strings.Contains(err.Error(), inProgress)):
		return true, nil
	}
	err = fmt.Errorf("ask for the eviction of %s/%s: %w", launcher.Namespace, launcher.Name, err)
	if client.IgnoreNotFound(err) == nil {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return false, err
}

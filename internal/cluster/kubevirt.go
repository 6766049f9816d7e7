package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// errKubeVirt means that KubeVirt and vmgrace would undo each other's marks, budgets and
// migrations.
var errKubeVirt = errors.New("this cluster has KubeVirt's own CRDs, and KubeVirt marks, budgets and migrates its VMs itself: start with --beside-kubevirt (deploy/beside-kubevirt), or remove KubeVirt")

// errNoCRDs means that the CRD is missing: the webhook cannot tell a pod without a VMI
// from a VM's.
var errNoCRDs = errors.New("this cluster has no VirtualMachineInstance: deploy/crds/run apply first")

// checkCRDs returns an error unless the cluster's CRDs are those that the flags expect.
func (o *Options) checkCRDs(ctx context.Context, live client.Reader) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := live.Get(ctx, client.ObjectKey{Name: kubevirt.CRD}, crd)
	switch {
	case apierrors.IsNotFound(err):
		return errNoCRDs
	case err != nil:
		return fmt.Errorf("whose CustomResourceDefinition is %s: %w", kubevirt.CRD, err)
	case kubeVirts(crd) && !o.BesideKubeVirt:
		return errKubeVirt
	default:
		return nil
	}
}

// kubeVirts reports whether KubeVirt's operator made the CRD: it labels and
// annotates all that it installs.
func kubeVirts(crd *metav1.PartialObjectMetadata) bool {
	if crd.Labels["app.kubernetes.io/managed-by"] == "virt-operator" {
		return true
	}
	for _, m := range []map[string]string{crd.Labels, crd.Annotations} {
		for key := range m {
			if key == kubevirt.AppLabel || strings.HasPrefix(key, "kubevirt.io/install-strategy") {
				return true
			}
		}
	}
	return false
}

package index

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

var errCRDDeleting = errors.New("its CustomResourceDefinition is being deleted")

// CRDExists returns an error unless the VMIs' CRD exists and is not being deleted, by a live
// read: a VMI that was removed with its CRD counts as unreadable, not as deleted.
func CRDExists(ctx context.Context, live client.Reader) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := live.Get(ctx, client.ObjectKey{Name: kubevirt.CRD}, crd); err != nil {
		return fmt.Errorf("it does not exist, and of its kind: %w", err)
	}
	if crd.DeletionTimestamp != nil {
		return errCRDDeleting
	}
	return nil
}

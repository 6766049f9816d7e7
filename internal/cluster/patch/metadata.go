package patch

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Metadata sets some of an object's "labels" or "annotations", which field names. A nil
// value removes one. It fails with a conflict if the object has another UID than o.
// Otherwise o is updated.
func Metadata(ctx context.Context, c client.Client, o client.Object, field string, values map[string]any) error {
	if len(values) == 0 {
		return nil
	}
	return merge(ctx, c, o, map[string]any{"uid": o.GetUID(), field: values}, field)
}

// MetadataAsRead is Metadata for a decision that only holds for the object as it was read.
// It fails with a conflict if the object has changed since. It updates only the
// resourceVersion of o.
func MetadataAsRead(ctx context.Context, c client.Client, o client.Object, field string, values any) error {
	return AllMetadataAsRead(ctx, c, o, map[string]any{field: values})
}

// AllMetadataAsRead is MetadataAsRead for several fields.
func AllMetadataAsRead(ctx context.Context, c client.Client, o client.Object, fields map[string]any) error {
	to, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("a copy of %T is no object", o)
	}
	metadata := maps.Clone(fields)
	metadata["uid"], metadata["resourceVersion"] = o.GetUID(), o.GetResourceVersion()
	err := merge(ctx, c, to, metadata, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
	if err == nil {
		o.SetResourceVersion(to.GetResourceVersion())
	}
	return err
}

// merge names each field that is to change. A patch computed from cached objects would
// remove the fields that the cache does not keep.
func merge(ctx context.Context, c client.Client, o client.Object, metadata map[string]any, what string) error {
	raw, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return fmt.Errorf("%s of %s/%s: %w", what, o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

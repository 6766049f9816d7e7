package patch

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Metadata sets some of an object's "labels" or "annotations", which field names; nil
// removes one. It fails with a conflict if the object has another UID than o. Otherwise o
// is updated.
func Metadata(ctx context.Context, c client.Client, o client.Object, field string, values map[string]any) error {
	if len(values) == 0 {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), field: values}})
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return fmt.Errorf("%s of %s/%s: %w", field, o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

package patch

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stale reports whether a write failed because the object is another one than was read:
// a new read may help. What a policy refuses is invalid, too; only that names the object.
func Stale(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	unnamed := status.Status().Details == nil || status.Status().Details.Kind == ""
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && unnamed
}

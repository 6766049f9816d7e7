package patch

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stale reports whether a write failed because the object is not as it was read: a new
// read may help. A policy's refusal is invalid, too, but names the object.
func Stale(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	unnamed := status.Status().Details == nil || status.Status().Details.Kind == ""
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && unnamed
}

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	crdAPIGroup = "apiextensions.k8s.io"
	crdResource = "customresourcedefinitions"
	crdName     = vmiResource + "." + vmiAPIGroup

	confirmTimeout = 10 * time.Second
)

// ErrUnconfirmed is the failure to learn what became of a VMI; the error that
// wraps it says why.
var ErrUnconfirmed = errors.New("what became of the VMI cannot be said")

// Confirm asks the API server what became of the VMI that was seen with this
// UID and creation time. It fails with ErrUnconfirmed and grace.FateUnknown.
//
// When a CRD is deleted, the API server first deletes all its objects, as if
// somebody had done so one by one (apiextensions-apiserver,
// pkg/controller/finalizer). Therefore no object counts as deleted before the
// CRD was looked at, in this order: the CRD was marked before its objects.
//
// A VMI that is on another node has moved, whatever else it says: its VM is
// there, and so is the agent that shuts it down.
func (s *Source) Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error) {
	ctx, cancel := context.WithTimeout(quietly(ctx), confirmTimeout)
	defer cancel()
	fate, err := s.confirm(ctx, vmKey{namespace, name}, uid, created)
	if err != nil {
		return grace.FateUnknown, fmt.Errorf("%w: %s/%s: %w", ErrUnconfirmed, namespace, name, err)
	}
	return fate, nil
}

func (s *Source) confirm(ctx context.Context, k vmKey, uid string, created time.Time) (grace.Fate, error) {
	if !k.valid() || uid == "" || created.IsZero() {
		return grace.FateUnknown, errors.New("the API server has never shown it")
	}
	now, err := s.object(ctx, k)
	switch {
	case errors.Is(err, errGone):
	case err != nil:
		return grace.FateUnknown, err
	case string(now.UID) == uid && now.Labels[nodeLabel] != "" && now.Labels[nodeLabel] != s.node:
		return grace.FateMoved, nil
	case string(now.UID) == uid && now.DeletionTimestamp == nil:
		return grace.FateHere, nil
	}
	fate, err := s.withCRD(ctx, created)
	if fate == grace.FateDeleted && now != nil && string(now.UID) != uid {
		fate = grace.FateReplaced
	}
	return fate, err
}

// withCRD: the object was deleted, or is being deleted, by somebody or with
// its whole kind.
func (s *Source) withCRD(ctx context.Context, created time.Time) (grace.Fate, error) {
	crd, err := s.crd(ctx)
	switch {
	case errors.Is(err, errGone):
		return grace.FateLost, nil
	case err != nil:
		return grace.FateUnknown, err
	case crd.DeletionTimestamp != nil, crd.CreationTimestamp.After(created):
		return grace.FateLost, nil
	default:
		return grace.FateDeleted, nil
	}
}

// errGone: the API server says that this very object does not exist.
var errGone = errors.New("it does not exist")

func (s *Source) object(ctx context.Context, k vmKey) (*metav1.PartialObjectMetadata, error) {
	r := s.clients.vmis.Get().Namespace(k.namespace).Resource(vmiResource).Name(k.name)
	a, err := ask(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", vmiResource, err)
	}
	o, err := a.object(vmiGroup().String(), vmiKind, metav1.StatusDetails{Group: vmiAPIGroup, Kind: vmiResource, Name: k.name})
	if err == nil && o.Namespace != k.namespace {
		err = fmt.Errorf("%w: it comes from namespace %.63q", errStrange, o.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", vmiResource, err)
	}
	return o, nil
}

func (s *Source) crd(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	a, err := ask(ctx, s.clients.crds.Get().Resource(crdResource).Name(crdName))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", crdResource, err)
	}
	o, err := a.object(crdAPIGroup+"/v1", "CustomResourceDefinition", metav1.StatusDetails{Group: crdAPIGroup, Kind: crdResource, Name: crdName})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", crdResource, err)
	}
	return o, nil
}

// object reads the answer to a GET. It fails with errGone if, and only if, the
// answer is an API server's and says so of the object in details.
func (a answer) object(apiVersion, kind string, details metav1.StatusDetails) (*metav1.PartialObjectMetadata, error) {
	if a.code != http.StatusOK {
		st, err := a.status()
		if err != nil {
			return nil, err
		}
		d := st.Details
		if a.code == http.StatusNotFound && st.Reason == metav1.StatusReasonNotFound && d != nil &&
			d.Group == details.Group && d.Kind == details.Kind && d.Name == details.Name {
			return nil, errGone
		}
		return nil, fmt.Errorf("status %d: %s %.200s", a.code, st.Reason, st.Message)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(a.body, &o); err != nil {
		return nil, fmt.Errorf("%w: %w", errStrange, err)
	}
	if o.APIVersion != apiVersion || o.Kind != kind || o.Name != details.Name || o.UID == "" || o.CreationTimestamp.IsZero() {
		return nil, fmt.Errorf("%w: a %.64q of %.64q named %.64q", errStrange, o.Kind, o.APIVersion, o.Name)
	}
	return &o, nil
}

// status reads the Status that an API server gives with every refusal.
func (a answer) status() (*metav1.Status, error) {
	var st metav1.Status
	if err := json.Unmarshal(a.body, &st); err != nil || st.Kind != "Status" || st.APIVersion != "v1" || int(st.Code) != a.code {
		return nil, fmt.Errorf("%w: status %d with %.64q", errStrange, a.code, a.body)
	}
	return &st, nil
}

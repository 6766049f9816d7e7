package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const confirmTimeout = 10 * time.Second

// errNotAsked means that not all necessary questions reached the API server.
var errNotAsked = errors.New("not asked")

// Confirm asks the API server what became of the VMI with this UID and creation
// time. On error the fate is grace.FateUnknown.
//
// A VMI whose label names another node counts as moved, also while it is being deleted: that node's
// agent shuts it down. Where KubeVirt does not run the VMs, its status may not name this node.
func (s *Source) Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	fate, err := s.confirm(ctx, key{namespace, name}, uid, created)
	if err == nil {
		return fate, nil
	}
	err = fmt.Errorf("the fate of the VMI is not known: %s/%s: %w", namespace, name, err)
	if !errors.Is(err, errNotAsked) && !errors.Is(ctx.Err(), context.Canceled) {
		s.health.unanswered(err)
	}
	return grace.FateUnknown, err
}

func (s *Source) confirm(ctx context.Context, k key, uid string, created time.Time) (grace.Fate, error) {
	if !k.valid() || uid == "" || created.IsZero() {
		return grace.FateUnknown, fmt.Errorf("%w: the API server has never shown it", errNotAsked)
	}
	if s.client.Load() == nil {
		return grace.FateUnknown, fmt.Errorf("%w: the kubeconfig could not be used yet", errNotAsked)
	}
	now, err := s.get(ctx, vmis(), k)
	switch {
	case errors.Is(err, errGone):
	case err != nil:
		return grace.FateUnknown, err
	case string(now.UID) == uid:
		if fate := s.where(now); fate != grace.FateHere || now.DeletionTimestamp == nil {
			return fate, nil
		}
	}
	fate, err := s.deletedOrLost(ctx, created)
	if fate == grace.FateDeleted && now != nil && string(now.UID) != uid {
		fate = grace.FateReplaced
	}
	return fate, err
}

// where returns the fate of a VMI that is there: whether it is on another node. A file that is
// applied again may state a former node, so a label alone moves no VM of ours. KubeVirt writes the
// label itself, and before the status.
func (s *Source) where(vmi *object) grace.Fate {
	var status kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(vmi.Status, &status) // unreadable JSON counts as empty
	ours := s.moves == nil
	switch label := vmi.Labels[kubevirt.NodeNameLabel]; {
	case label == "", label == s.node, ours && status.NodeName == s.node:
		return grace.FateHere
	case slices.Contains(status.FencedNodes, s.node):
		return grace.FateFenced
	default:
		return grace.FateMoved
	}
}

// deletedOrLost returns whether the VMI was deleted by itself or lost with its
// CRD.
func (s *Source) deletedOrLost(ctx context.Context, created time.Time) (grace.Fate, error) {
	switch c, known := s.crd(); {
	case !known:
		return grace.FateUnknown, fmt.Errorf("%w: it is not there or is being deleted, and its CRD is not shown just now", errNotAsked)
	case c.took(created): // no request needed
		return grace.FateLost, nil
	}
	switch c, err := s.getCRD(ctx); {
	case err != nil:
		return grace.FateUnknown, err
	case c.took(created):
		return grace.FateLost, nil
	default:
		return grace.FateDeleted, nil
	}
}

// errGone means that the API server says that this very object does not exist.
var errGone = errors.New("it does not exist")

func (s *Source) getCRD(ctx context.Context) (crd, error) {
	o, err := s.get(ctx, crds(), key{"", kubevirt.CRD})
	if err != nil {
		return crd{}, err
	}
	return stripCRD(o, crd{}), nil
}

// get reads one object. It returns errGone only if an API server's own Status
// says that this very object does not exist.
func (s *Source) get(ctx context.Context, r resource, k key) (*object, error) {
	a, err := ask(ctx, r.of(s.client.Load().Get()).NamespaceIfScoped(k.namespace, k.namespace != "").Name(k.name))
	var o *object
	if err == nil {
		o, err = a.object(r, k)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", r.plural, err)
	}
	return o, nil
}

func (a answer) object(r resource, k key) (*object, error) {
	if a.code != http.StatusOK {
		return nil, a.refusal(r, k)
	}
	var o object
	if err := json.Unmarshal(a.body, &o); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotAPIServer, err)
	}
	if o.APIVersion != r.version().String() || o.Kind != r.kind || o.Namespace != k.namespace || o.Name != k.name || o.UID == "" || o.CreationTimestamp.IsZero() {
		return nil, fmt.Errorf("%w: a %.64q of %.64q named %.64q in %.64q", errNotAPIServer, o.Kind, o.APIVersion, o.Name, o.Namespace)
	}
	return &o, nil
}

// refusal returns errGone if the answer says that this very object does not
// exist.
func (a answer) refusal(r resource, k key) error {
	st, err := a.status()
	if err != nil {
		return err
	}
	d := st.Details
	if a.code == http.StatusNotFound && st.Reason == metav1.StatusReasonNotFound && d != nil &&
		d.Group == r.group && d.Kind == r.plural && d.Name == k.name {
		return errGone
	}
	return &apierrors.StatusError{ErrStatus: *st}
}

// status reads the Status that an API server gives with every refusal.
func (a answer) status() (*metav1.Status, error) {
	var st metav1.Status
	if err := json.Unmarshal(a.body, &st); err != nil || st.Kind != "Status" || st.APIVersion != "v1" || int(st.Code) != a.code {
		return nil, fmt.Errorf("%w: status %d with %.64q", errNotAPIServer, a.code, a.body)
	}
	return &st, nil
}

package kube

import (
	"context"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// crdTimeout is how long the API server has to answer a question about the
	// CRD. The CRD watch may lag the VMI watch by this much.
	crdTimeout = 500 * time.Millisecond
	crdRetry   = time.Second
)

// decideDeletions decides, until ctx ends, which deletionTimestamps mean that a
// VMI was deleted. A VMI stays undecided until its CRD is known to exist.
func (s *Source) decideDeletions(ctx context.Context) {
	for {
		select {
		case <-s.marked:
		case <-ctx.Done():
			return
		}
		for s.waiting() && ctx.Err() == nil {
			at := s.now()
			c, ok := s.standingCRD(ctx)
			if !ok {
				sleep(ctx, crdRetry)
				continue
			}
			s.countDeletions(c, at)
		}
	}
}

// waiting returns whether a deletionTimestamp may turn out to be a deletion.
// None can while the CRD is being deleted.
func (s *Source) waiting() bool {
	c, _ := s.crd()
	found := false
	s.vmis.all(func(v vmi) { found = found || v.undecided() && !c.took(v.Created) })
	return found
}

// crd returns the VMIs' CRD as its watch shows it. It is unknown while the
// watch is down or shows no CRD.
func (s *Source) crd() (c crd, known bool) {
	if !s.health.isEstablished(crds().plural) {
		return crd{}, false
	}
	return s.crds.get(key{"", kubevirt.CRD})
}

// took returns whether an object created then ends with the CRD.
func (c crd) took(created time.Time) bool { return c.ending || c.created.After(created) }

// standingCRD returns the CRD if it existed, and was not being deleted, at some
// time after the call. One request serves all VMIs. If the request fails or is
// slow, the CRD's watch decides: by then it had crdTimeout to show a deletion.
func (s *Source) standingCRD(ctx context.Context) (crd, bool) {
	before, known := s.crd()
	if !known || before.ending {
		return crd{}, false
	}
	within, cancel := context.WithTimeout(ctx, crdTimeout)
	defer cancel()
	if now, err := s.getCRD(within); err == nil {
		return before, now == before
	}
	<-within.Done()
	after, known := s.crd()
	return before, known && after == before && ctx.Err() == nil
}

// countDeletions counts deletionTimestamps seen by at as deletions.
func (s *Source) countDeletions(c crd, at grace.Mono) {
	s.vmis.edit(func(v vmi) vmi {
		if v.undecided() && v.marked <= at && !c.took(v.Created) {
			v.State, v.DeletingAt = grace.VMIDeleting, max(v.marked, s.now().Add(-crdTimeout))
		}
		return v
	})
}

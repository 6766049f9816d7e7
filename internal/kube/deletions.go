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

// decideDeletions finds out which deletionTimestamps mean that a VMI was
// deleted, until ctx ends. A VMI whose CRD is not known to be there waits.
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

// waiting: a deletionTimestamp may turn out to be a deletion. While the CRD is
// being deleted none may.
func (s *Source) waiting() bool {
	c, _ := s.crd()
	found := false
	s.vmis.all(func(v vmi) { found = found || v.undecided() && !c.took(v.Created) })
	return found
}

// crd is the VMIs' CRD as its watch shows it; not known where there is no watch
// just now, or it shows none.
func (s *Source) crd() (c crd, known bool) {
	if !s.health.isEstablished(crds().plural) {
		return crd{}, false
	}
	return s.crds.get(key{"", kubevirt.CRD})
}

// took: what was created then goes, or went, with its CRD.
func (c crd) took(created time.Time) bool { return c.ending || c.created.After(created) }

// standingCRD gives the CRD if it was there, and was not being deleted, at some
// time after the call. One question does for all VMIs. Where the answer takes
// long the CRD's watch counts, which had as long to show its end.
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

// countDeletions: this CRD stood after this time.
func (s *Source) countDeletions(c crd, at grace.Mono) {
	s.vmis.edit(func(v vmi) vmi {
		if v.undecided() && v.marked <= at && !c.took(v.Created) {
			v.State, v.DeletingAt = grace.VMIDeleting, max(v.marked, s.now().Add(-crdTimeout))
		}
		return v
	})
}

package kube

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// trouble is a kind of failure, as an operator would tell them apart.
type trouble string

const (
	unreachable  trouble = "the API server cannot be reached"
	distrusted   trouble = "the API server's certificate is not trusted"
	unauthorized trouble = "the API server does not accept the credentials"
	forbidden    trouble = "the API server forbids it"
	notServed    trouble = "the API server does not know the resource"
	failing      trouble = "the API server fails"
	busy         trouble = "the API server is busy"
	notAPIServer trouble = "what answers does not behave like an API server"
)

// remedy says what to do about it.
func (t trouble) remedy() string {
	switch t {
	case unreachable:
		return "see that it runs and that this node can connect to it"
	case distrusted:
		return "see that the CA in the kubeconfig, or of the service account, is the cluster's"
	case unauthorized:
		return "see that the service account, or the kubeconfig's user, still exists"
	case forbidden:
		return "restore the role and binding in deploy/daemonset"
	case notServed:
		return "install KubeVirt's CRDs, or those in deploy/crds"
	default:
		return "see its log, and what stands between it and this node"
	}
}

// persistent is how long a busy server, or a further kind of trouble in the same
// outage, must last to be logged: a starting server refuses many requests for a
// moment.
const persistent = 10 * time.Second

// health tracks which watches are established, and logs each change once.
type health struct {
	log *slog.Logger
	now func() grace.Mono
	// What is watched, and the consequence while it is not, as logged.
	what, without string

	mu       sync.Mutex
	watches  map[string]*watchHealth // by resource
	reported map[trouble]bool        // in this outage
	up       bool
	begun    bool // it was up once

	refused    trouble // trouble last logged about a question
	reportedAt grace.Mono
}

type watchHealth struct {
	established bool
	trouble     trouble
	since       grace.Mono
}

func newHealth(log *slog.Logger, now func() grace.Mono, watched ...resource) *health {
	h := &health{
		log: log, now: now, what: "VMIs and launcher pods are", without: "VMs stay as they are, launcher triggers still work",
		watches: map[string]*watchHealth{}, reported: map[trouble]bool{},
	}
	for _, r := range watched {
		h.watches[r.plural] = &watchHealth{}
	}
	return h
}

func (h *health) isUp() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.up
}

// isEstablished returns whether the watch of this resource is established.
func (h *health) isEstablished(resource string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watches[resource].established
}

// pending records that a list or watch was requested, so none is up.
func (h *health) pending(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches[resource].established, h.up = false, false
}

func (h *health) established(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.watches[resource] = watchHealth{established: true}
	for _, w := range h.watches {
		if !w.established {
			return
		}
	}
	h.up = true
	if len(h.reported) > 0 || !h.begun {
		h.begun = true
		clear(h.reported)
		h.log.Info(h.what + " watched") //nolint:sloglint // one of two
	}
}

func (h *health) failed(resource, verb string, err error) {
	t := classify(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	now, w := h.now(), h.watches[resource]
	if w.trouble != t {
		w.trouble, w.since = t, now
	}
	w.established, h.up = false, false
	if h.reported[t] || (t == busy || len(h.reported) > 0) && now.Sub(w.since) < persistent {
		return
	}
	h.reported[t] = true
	h.log.Warn(h.what+" not watched; "+h.without, //nolint:sloglint // one of two
		"reason", string(t), "verb", verb, "resource", resource, "do", t.remedy(), "err", err)
}

// repeatInterval is how long the same trouble with questions is not logged
// again.
const repeatInterval = 10 * time.Minute

// unanswered logs that the API server did not answer a question about a VMI. The
// agent asks again soon. While a watch is down, failed has logged that.
func (h *health) unanswered(err error) {
	t := classify(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !h.up || h.refused == t && now.Sub(h.reportedAt) < repeatInterval {
		return
	}
	h.refused, h.reportedAt = t, now
	h.log.Warn("the API server does not say what became of a VMI; its VM stays as it is, and it is asked again",
		"reason", string(t), "do", t.remedy(), "err", err)
}

func classify(err error) trouble {
	var certificate *tls.CertificateVerificationError
	var negotiation runtime.NegotiateError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &certificate):
		return distrusted
	case errors.Is(err, errNotAPIServer), errors.As(err, &negotiation):
		return notAPIServer
	case !errors.As(err, &status):
		return unreachable
	case apierrors.IsUnauthorized(err):
		return unauthorized
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsNotFound(err):
		return notServed
	case apierrors.IsTooManyRequests(err):
		return busy
	case status.Status().Code >= 500:
		return failing
	default:
		return notAPIServer
	}
}

// errNotAPIServer means that no API server answers like that.
var errNotAPIServer = errors.New("not the response of an API server")

// expired returns whether a watch ended because it fell behind, which is
// ordinary. A list follows.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

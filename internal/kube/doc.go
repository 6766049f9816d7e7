// Package kube says what the API server says of the VMIs and launcher pods of
// this node, and tells it Events.
//
// It decides nothing about VMs. What the watches have seen is kept in memory,
// so that nobody waits for an API server; what is missing there is only that:
// missing. Whether a VMI is really gone is asked with Confirm, which believes
// an answer only if it can come from nobody but the API server of the VMI's own
// kind. Everything else is "unknown", and unknown shuts down nothing.
//
// When a CRD is deleted, the API server marks all its objects as deleted, as if
// somebody had done so one by one (apiextensions-apiserver,
// pkg/controller/finalizer); the CRD is marked first. Therefore the VMIs' CRD is
// watched, too, and no VMI counts as deleted before the CRD was looked at.
//
// It is the only package of the agent that knows Kubernetes' client libraries.
// Of those it takes the REST client and the reflector; the rest of the usual
// stack would cost memory on every node and hide the answers that matter here.
package kube

// Package kube watches the VMIs and launcher pods of this node, and delivers
// Events.
//
// It decides nothing about VMs. What the watches have seen is kept in memory,
// so that nobody waits for an API server; what is missing there is only that:
// missing. Whether a VMI is really gone is asked with Confirm, which believes
// an answer only if it can only come from an API server that serves VMIs.
// Everything else is "unknown", and unknown shuts down nothing.
//
// When a CRD is deleted, the API server marks all its objects as deleted, as if
// somebody had done so one by one (apiextensions-apiserver,
// pkg/controller/finalizer); the CRD is marked first. Therefore the VMIs' CRD is
// watched, too, and no VMI counts as deleted before the CRD was looked at.
//
// It is the only package of the agent that imports Kubernetes' client libraries.
// Of those it takes the REST client and the reflector; the rest of the usual
// stack would cost memory on every node and hide the answers that matter here.
package kube

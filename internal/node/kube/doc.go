// Package kube watches the VMIs and launcher pods of this node, and delivers
// Events.
//
// It decides nothing about VMs. It keeps what the watches show in memory, so
// that nobody waits for an API server. A VMI that is missing there is not proven
// gone: Confirm asks the API server. Confirm trusts an answer only if nothing
// but an API server that serves VMIs can have given it. Any other answer is
// "unknown", which shuts down nothing.
//
// When a CRD is deleted, the API server marks all its objects as deleted, as if
// each had been deleted by itself (apiextensions-apiserver,
// pkg/controller/finalizer). It marks the CRD first. Therefore this package also
// watches the VMIs' CRD, and checks it before a VMI counts as deleted.
//
// It is the only package of the agent that imports Kubernetes' client libraries.
// It uses only their REST client and reflector: the rest of the usual stack
// would cost memory on every node and hide the raw answers that matter here.
package kube

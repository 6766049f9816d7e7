// Package certs keeps the serving certificate of the webhooks, and the caBundle
// by which the API server knows it.
//
// Both are in one Secret that all replicas watch, and any replica renews: the
// Secret's resourceVersion decides who was first. There is no moment in which
// the API server meets a certificate that it does not know: the CA that signs
// next is in the caBundle for the whole life of the one before it, and the one
// before stays there for as long.
//
// The Secret also has the key that is put behind the path of the webhook that
// marks VMs: a port is reached by many, a certificate proves only who serves.
package certs

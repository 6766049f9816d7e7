// Package deploy checks what users apply: manifests, CRDs, examples, alerts and images. A
// real API server accepts or refuses them. test/e2e runs them.
package deploy

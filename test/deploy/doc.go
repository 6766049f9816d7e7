// Package deploy checks what users apply: manifests, CRDs, examples, alerts and
// images. The API server that judges them is a real one; test/e2e runs them.
package deploy

//go:build !unit

package handover

import "github.com/vmgrace/vmgrace/test/objects"

// get is what kubectl get -o jsonpath prints of a pod, vmi or vmim.
func (w world) get(kind, name, path string) string {
	w.Helper()
	reader, err := objects.New(w.api.Kubeconfig) // client-go shares the connection
	if err != nil {
		w.Fatalf("%v", err)
	}
	out, err := reader.Get(w.Context(), objects.Query{Kind: kind, Namespace: "default", Name: name, Path: path})
	if err != nil {
		w.Fatalf("%v", err)
	}
	return out
}

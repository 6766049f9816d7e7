//go:build !unit

package handover

import "github.com/vmgrace/vmgrace/test/objects"

// get is what kubectl get -o jsonpath prints of a pod, vmi or vmim.
func (w world) get(kind, name, path string) string {
	w.Helper()
	return w.objects.Read(w, objects.Query{Kind: kind, Namespace: "default", Name: name, Path: path})
}

// events are the reasons of the Events about a VMI that such a field selector, too,
// selects.
func (v *vm) events(fields string) string {
	v.w.Helper()
	return v.w.objects.Read(v.w, objects.Query{Kind: "event", Namespace: "default",
		Fields: "involvedObject.uid=" + v.uid + fields, Path: "{.items[*].reason}"})
}

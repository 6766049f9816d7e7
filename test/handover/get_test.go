//go:build !unit

package handover

import "github.com/vmgrace/vmgrace/test/objects"

// get returns what kubectl get -o jsonpath prints for a pod, a vmi or a vmim.
func (w world) get(kind, name, path string) string {
	w.Helper()
	return w.objects.Read(w, objects.Query{Kind: kind, Namespace: "default", Name: name, Path: path})
}

// events returns the reasons of the Events about the VM's VMI. fields is empty or a further
// field selector that starts with a comma.
func (v *vm) events(fields string) string {
	v.w.Helper()
	return v.w.objects.Read(v.w, objects.Query{Kind: "event", Namespace: "default",
		Fields: "involvedObject.uid=" + v.uid + fields, Path: "{.items[*].reason}"})
}

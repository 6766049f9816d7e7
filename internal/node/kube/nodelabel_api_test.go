//go:build !unit

package kube

import (
	"encoding/json"
	"errors"
	"maps"
	"testing"
)

// Given a Node with a label of others. When the agent labels it, repeats that, and takes the
// label back, then nothing else has changed, and the Node is written to only where it
// differs.
func TestTheNodesLabelIsWrittenWhereItDiffers(t *testing.T) {
	r := newRig(t)
	if err := r.labelNode(t.Context(), "true"); !errors.Is(err, errGone) {
		t.Errorf("without a Node: %v", err)
	}
	path := "/api/v1/nodes/" + r.name
	r.must("POST", "/api/v1/nodes", `{"metadata":{"name":"`+r.name+`","labels":{"rack":"7"}}}`)
	t.Cleanup(func() { r.must("DELETE", path, "") })
	read := func() (o object) {
		t.Helper()
		if err := json.Unmarshal(r.must("GET", path, "").body, &o); err != nil {
			t.Fatal(err)
		}
		delete(o.Labels, "kubernetes.io/hostname")
		return o
	}
	label := func(value string, want map[string]string) string {
		t.Helper()
		if err := r.labelNode(t.Context(), value); err != nil {
			t.Fatal(err)
		}
		o := read()
		if !maps.Equal(o.Labels, want) {
			t.Errorf("%q: %v, want %v", value, o.Labels, want)
		}
		return o.ResourceVersion
	}
	with, without := map[string]string{"rack": "7", "vmgrace.io/takes-migrations": "true"}, map[string]string{"rack": "7"}
	was := read().ResourceVersion
	if is := label("", without); is != was {
		t.Error("a Node without the label was written to")
	}
	was = label("true", with)
	if is := label("true", with); is != was {
		t.Error("a Node with the label was written to")
	}
	r.must("PATCH", path, `{"metadata":{"labels":{"vmgrace.io/takes-migrations":"no"}}}`)
	label("true", with)
	label("", without)
}

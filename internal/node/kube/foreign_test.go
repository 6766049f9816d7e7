package kube

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// kubeVirts returns an object with every field of KubeVirt's own type.
func kubeVirts(t *testing.T, kind string) *object {
	t.Helper()
	text, err := os.ReadFile("../../../api/kubevirt/testdata/" + kind + ".json")
	if err != nil {
		t.Fatal(err)
	}
	o := &object{}
	if err := json.Unmarshal(text, o); err != nil {
		t.Fatal(err)
	}
	o.Namespace, o.Name, o.UID = "ns", "vm", "00000000-0000-0000-0000-000000000001"
	return o
}

func TestKubeVirtsOwnObjectsAreRead(t *testing.T) {
	s := New(Config{Node: "word", Now: func() grace.Mono { return 0 }, Log: slog.New(slog.DiscardHandler)})
	v := kubeVirts(t, "vmi")
	v.Labels = map[string]string{kubevirt.NodeNameLabel: "word"}
	if is := s.stripVMI(v, vmi{}); is.Grace != "7" || !is.Marked {
		t.Errorf("VMI: %+v", is)
	}
	m := kubeVirts(t, "migration")
	m.Labels = map[string]string{migration.SourceNodeLabel: "word"}
	is := NewMigrations(s, "vmgrace-system", func() {}).strip(m, migration.SourceNodeLabel)
	if is == nil || is.Spec.VMIName != "word" || is.Status.MigrationState == nil || is.Status.MigrationState.SourceNode != "word" || is.Status.MigrationState.SourceState != "" {
		t.Errorf("migration: %+v", is)
	}
}

// Conditions of others, of whatever type, keep their places and fields.
func TestOneConditionIsPatchedByItsPlace(t *testing.T) {
	s := &Source{node: "n"}
	v := migratable.VMI{Namespace: "ns", Name: "vm", UID: "u"}
	for status, want := range map[string]string{
		``:                                  `{"op":"add","path":"/status","value":{"conditions":[`,
		`{"phase":7}`:                       `{"op":"add","path":"/status/conditions","value":[{`,
		`{"nodeName":{},"conditions":[7]}`:  `{"op":"add","path":"/status/conditions/-","value":{`,
		`{"conditions":[{"type":"Ready"}]}`: `{"op":"add","path":"/status/conditions/-","value":{`,
		`{"conditions":["x",{"type":"LiveMigratable","of":12345678901234567}]}`: `{"op":"replace","path":"/status/conditions/1","value":{"lastProbeTime":`,
	} {
		o := &object{Status: json.RawMessage(status)}
		o.UID, o.Labels = "u", map[string]string{kubevirt.NodeNameLabel: "n"}
		patch, err := s.migratablePatch(o, v, migratable.Verdict{Status: "True"})
		if err != nil || len(patch) != 2 {
			t.Errorf("%s: %v, %v", status, patch, err)
			continue
		}
		if text, err := json.Marshal(patch[1]); err != nil || len(text) < len(want) || string(text[:len(want)]) != want {
			t.Errorf("%s: %s, want %s…", status, text, want)
		}
		if is, ok := patch[1].Value.(map[string]any); ok && patch[1].Op == "replace" && is["of"] != int64(12345678901234567) {
			t.Errorf("%s: a field of another's is %v", status, is["of"])
		}
	}
}

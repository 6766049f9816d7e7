package kube

import (
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// If a starting API server forbids everything for a moment, it stays unknown which
// migrations there are. If it forbids them for good, or does not serve migrations, there
// are none.
func TestAMomentsRefusalIsNotTheAbsenceOfMigrations(t *testing.T) {
	resource := schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstancemigrations"}
	for what, refusal := range map[string]error{
		"forbidden":  apierrors.NewForbidden(resource, "", nil),
		"not served": apierrors.NewNotFound(resource, ""),
	} {
		now, changes := grace.Mono(time.Hour), 0
		s := New(Config{Node: "n", Now: func() grace.Mono { return now }, Log: slog.New(slog.DiscardHandler)})
		m := NewMigrations(s, "vmgrace-system", func() { changes++ })
		for range 9 {
			m.failing(refusal)
			now = now.Add(time.Second)
		}
		if _, complete := m.Migrations(); complete || changes > 0 {
			t.Errorf("%s: taken for an answer after 9 s", what)
		}
		now = now.Add(2 * time.Second)
		m.failing(refusal)
		if all, complete := m.Migrations(); !complete || len(all) > 0 || changes != 1 {
			t.Errorf("%s: not known after 11 s, %d changes", what, changes)
		}
	}
}

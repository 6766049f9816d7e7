package cluster

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only an Event that a namespace cannot take any more is dropped without a word.
func TestARefusedEventOfALivingNamespaceIsLogged(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("a quota"))
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err     error
		message string
		said    bool
	}{
		"terminating":    {terminating, rejected, false},
		"a quota":        {forbidden, rejected, true},
		"another matter": {terminating, "it fails", true},
	} {
		var out bytes.Buffer
		logr.FromSlogHandler(quiet{slog.NewTextHandler(&out, nil)}).WithName("events").WithValues("k", 1).Error(c.err, c.message, "event", "x")
		if said := strings.Contains(out.String(), c.message); said != c.said {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}

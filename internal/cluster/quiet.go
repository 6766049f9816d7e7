package cluster

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// quiet is a log handler for the libraries. It drops what client-go says, as an error and with
// the whole object, about each Event in a namespace that is being deleted.
type quiet struct{ slog.Handler }

// rejected is client-go's message about an Event that the API server refuses.
const rejected = "Server rejected event (will not retry!)"

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	terminating := false
	if r.Message == rejected {
		r.Attrs(func(a slog.Attr) bool {
			err, _ := a.Value.Any().(error)
			terminating = err != nil && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
			return !terminating
		})
	}
	if terminating {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

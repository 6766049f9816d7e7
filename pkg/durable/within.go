package durable

import (
	"context"
	"fmt"
)

// Within waits for do until ctx ends; what names it in the error. A call that hangs is
// left behind, with one goroutine, until the disk answers.
func Within(ctx context.Context, what string, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s does not answer: %w", what, ctx.Err())
	}
}

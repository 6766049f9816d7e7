package durable

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestADiskThatHangsHoldsUpNobodyForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Within(ctx, "the disk", func() error { return io.ErrShortWrite }); !errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
		hangs := make(chan struct{})
		defer close(hangs)
		err := Within(ctx, "the disk", func() error { <-hangs; return nil })
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the disk does not answer") {
			t.Error(err)
		}
	})
}

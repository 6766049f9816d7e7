// Package settings has the settings of the whole cluster as they are now.
package settings

import (
	"sync/atomic"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Live is the last good settings. Safe for concurrent use.
type Live struct {
	now atomic.Pointer[evacuation.Settings]
}

// New returns the defaults.
func New() *Live {
	l := &Live{}
	defaults := evacuation.Defaults()
	l.now.Store(&defaults)
	return l
}

// Get returns a copy of what counts now; its slices are not to be changed.
func (l *Live) Get() evacuation.Settings { return *l.now.Load() }

// Set replaces them.
func (l *Live) Set(s evacuation.Settings) { l.now.Store(&s) }

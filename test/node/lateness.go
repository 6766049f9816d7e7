package node

import (
	"sync"
	"time"
)

// Lateness measures, from now on, how late this machine wakes a process that
// sleeps for a millisecond. What it returns ends that and says the worst: a
// promise that presumes a free core is kept as long as the agent is late by no
// more than that.
func Lateness(t T) (end func() time.Duration) {
	t.Helper()
	stop, worst := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		most := time.Duration(0)
		for {
			begin := time.Now()
			select {
			case <-stop:
				worst <- most
				return
			case <-time.After(time.Millisecond):
				most = max(most, time.Since(begin)-time.Millisecond)
			}
		}
	}()
	end = sync.OnceValue(func() time.Duration { close(stop); return <-worst })
	t.Cleanup(func() { end() })
	return end
}

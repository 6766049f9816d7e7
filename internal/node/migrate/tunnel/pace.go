package tunnel

import "time"

// Bounds on what a source may cost this node's libvirt, and for how long.
const (
	// pingRate bounds the source's keepalive messages per second, pingBurst those at once:
	// libvirt sends one in 5 s.
	pingRate, pingBurst = 2, 20
	// maxCalls bounds the calls of one migration, which has about a dozen.
	maxCalls = 64
	// prepareTimeout bounds the time from the beginning to the call that prepares the
	// migration.
	prepareTimeout = time.Minute
	// idleTimeout is how long a source may send neither a call nor memory when it is its
	// turn. Keepalive messages do not count.
	idleTimeout = 2 * time.Minute
)

// ping counts a keepalive message of the source.
func (m *machine) ping() error {
	if !m.pings.Allow() {
		return refuse(ReasonRate, "more than %d keepalive messages a second", pingRate)
	}
	return nil
}

// goesOn gives the source time for its next frame. It stops the timer during two calls:
// libvirt's own work for them has no known duration. The caller holds the lock.
func (m *machine) goesOn() {
	switch {
	case m.waiting == procPrepareTunnel || m.waiting == procFinish:
		m.idle.Stop()
	case m.stage >= stagePrepared:
		m.idle.Reset(idleTimeout)
	}
}

package tunnel

import "time"

// Bounds on what a source may cost this node's libvirt, and for how long.
const (
	// pingRate and pingBurst bound keepalive messages of the source in a second, and at
	// once: libvirt sends one in 5 s.
	pingRate, pingBurst = 2, 20
	// maxCalls bounds the calls of one migration, which has about a dozen.
	maxCalls = 64
	// prepareTimeout bounds the time from the beginning to the call that prepares the
	// migration.
	prepareTimeout = time.Minute
	// idleTimeout is for how long a source may send neither a call nor memory where it is
	// its turn. Keepalive messages do not count.
	idleTimeout = 2 * time.Minute
)

// ping counts a keepalive message of the source.
func (m *machine) ping() error {
	if !m.pings.Allow() {
		return refuse(ReasonRate, "more than %d keepalive messages a second", pingRate)
	}
	return nil
}

// goesOn gives the source time for its next frame. Of libvirt's own work for two of the calls
// the time is not known. The caller holds the lock.
func (m *machine) goesOn() {
	switch {
	case m.waiting == procPrepareTunnel || m.waiting == procFinish:
		m.idle.Stop()
	case m.stage >= stagePrepared:
		m.idle.Reset(idleTimeout)
	}
}

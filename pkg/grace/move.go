package grace

// Move is what a launcher has to do about the migration of a guest whose process is in the
// launcher pod itself.
type Move string

// The moves. An unknown one is answered by an error.
const (
	MoveLook     Move = "look"     // tell what the guest is doing
	MoveIncoming Move = "incoming" // let the guest arrive through the socket of the agent
	MoveMigrate  Move = "migrate"  // send the guest through the socket of the agent
	MovePause    Move = "pause"    // stop the guest while it is being sent
	MoveCancel   Move = "cancel"   // end the migration; the guest goes on
	MoveCont     Move = "cont"     // let a guest that is paused run
)

// MoveRequest is the agent's last request to a launcher about a migration; zero for none. The
// core makes none.
type MoveRequest struct {
	// Request is its number. The numbers grow; 0 is none.
	Request uint64 `json:"request"`
	Do      Move   `json:"do"`
	// Bandwidth is in MiB/s; 0 = no limit. AutoConverge slows the guest's CPUs down if it
	// writes faster than it is sent. Both are of MoveMigrate alone.
	Bandwidth    uint64 `json:"bandwidth,omitempty"`
	AutoConverge bool   `json:"autoConverge,omitempty"`
}

package signals

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Moving is what vm.json says about the migration of a guest whose process is in the launcher
// pod. It is zero if the shim is too old to move its guest. A tenant states it: it is a hint,
// and harms its own VM alone.
type Moving struct {
	// Able is AbleOK if QEMU's monitor answers and the guest can be sent, otherwise why not.
	Able string `json:"able,omitempty"`
	// Machine describes QEMU's machine: the guest goes on only in an equal one.
	Machine Machine `json:"machine,omitzero"`
	// Requested is the last request that was carried out. Result is ResultOK, or an error for
	// people.
	Requested uint64 `json:"requested,omitempty"`
	Result    string `json:"result,omitempty"`
	// State is that of the migration, StateNone without one. Reason says why it failed.
	State  MoveState `json:"state,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// Total and Remaining are bytes of the guest's memory, while it is sent.
	Total     uint64 `json:"total,omitempty"`
	Remaining uint64 `json:"remaining,omitempty"`
	// Downtime is how long the guest had been stopped when it was sent, in milliseconds; 0:
	// unknown.
	Downtime uint64 `json:"downtime,omitempty"`
	// Guest is what the guest was doing at the last look: GuestRunning, GuestPaused, or
	// another word of QEMU's; "" if that is not known.
	Guest string `json:"guest,omitempty"`
}

// Machine describes the machine that QEMU emulates, in QEMU's words.
type Machine struct {
	Type        string `json:"type,omitempty"`        // pc-q35-7.2
	Accelerator string `json:"accelerator,omitempty"` // kvm, tcg
	CPU         string `json:"cpu,omitempty"`         // host, max, qemu64
	// Features is a digest of the CPU features that the guest sees, of x86. A host that lacks one of the
	// CPU's leaves it out, and QEMU goes on.
	Features string `json:"features,omitempty"`
}

// MoveState is the state of a migration as the launcher sees it.
type MoveState string

// The states. Setup without a request is that of an empty QEMU, which waits for a guest.
const (
	StateNone      MoveState = ""
	StateSetup     MoveState = "setup"
	StateActive    MoveState = "active"
	StatePaused    MoveState = "paused"    // being sent, and stopped by a request
	StateCompleted MoveState = "completed" // sent, whole; the guest is stopped
	StateFailed    MoveState = "failed"
	StateCancelled MoveState = "cancelled"
	StateArrived   MoveState = "arrived" // whole, and paused
	StateRunning   MoveState = "running" // it goes on after it has arrived
)

// Values of Moving.
const (
	AbleOK       = "ok"
	GuestRunning = "running"
	GuestPaused  = "paused"
)

// FileMigration is the socket that the agent makes for one connection of one migration.
const FileMigration = "migration.sock"

// maxWord bounds a word of QEMU's.
const maxWord = 64

// clean returns a Moving whose texts are short lines of printable ASCII.
func (m Moving) clean() Moving {
	for text, most := range map[*string]int{
		&m.Able: maxResult, &m.Result: maxResult, &m.Reason: maxResult, &m.Guest: maxWord,
		&m.Machine.Type: maxWord, &m.Machine.Accelerator: maxWord, &m.Machine.CPU: maxWord, &m.Machine.Features: maxWord,
	} {
		*text = resultText(*text)
		*text = (*text)[:min(len(*text), most)]
	}
	m.State = MoveState(resultText(string(m.State)))
	m.State = m.State[:min(len(m.State), maxWord)]
	return m
}

// MoveRequested is the last request of the agent about a migration to this launcher, zero for
// none.
func (s *Sender) MoveRequested() (grace.MoveRequest, error) {
	now, _, err := s.status()
	if now.Migration.Request > s.before.Migration.Request {
		return now.Migration, err
	}
	return grace.MoveRequest{}, err
}

// TellMoving changes what vm.json says of the migration.
func (s *Sender) TellMoving(m Moving) error {
	s.vm.Migration = m
	return s.rewrite()
}

// ErrNoSocket says that something else stands where the agent's socket should be.
var ErrNoSocket = errors.New("no socket")

// ConnectMigration connects to the agent's FileMigration and returns the connection. It
// follows no link. It does not wait: it fails unless the agent listens.
func (s *Sender) ConnectMigration() (*os.File, error) {
	if s.root == nil {
		return nil, fmt.Errorf("%s: %w", FileMigration, fs.ErrNotExist)
	}
	found, err := s.root.OpenFile(FileMigration, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	info, err := found.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", FileMigration, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s: %w (%s)", FileMigration, ErrNoSocket, info.Mode().Type())
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	conn := os.NewFile(uintptr(fd), FileMigration)
	// The path of a descriptor is short, whatever the directory's is.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", found.Fd())}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", FileMigration, err), conn.Close())
	}
	return conn, nil
}

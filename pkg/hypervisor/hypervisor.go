// Package hypervisor is what vmgrace needs of a hypervisor: the running domains, a
// request to shut one down, a resume, a destroy, and events. libvirt/ implements it with
// libvirt; test/fake implements it with scripts. test/drivertest has the contract that all pass.
package hypervisor

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Domain is a running domain as it was last seen.
type Domain struct {
	Name string
	grace.Domain
	// Persistent and Autostart mark a domain that may come back by itself.
	Persistent, Autostart bool
}

// Event says that something about a domain changed. It is a hint: events get lost, so the
// receiver looks itself.
type Event struct {
	// Name is the domain; "" means that anything may have changed.
	Name string
	UUID string
	// End is set when the instance ended or is ending (guest off).
	End grace.End
	// Stopped is when the guest stopped so that its remaining state can be sent to
	// another host, by this host's clock; zero otherwise.
	Stopped time.Time
}

// Sentinel errors, which a Driver wraps with what was tried and the domain's name.
// Anything else, and ErrUnavailable too, says nothing about the domain.
var (
	// ErrNotFound means that the hypervisor has no such running domain.
	ErrNotFound = errors.New("no such running domain")
	// ErrOtherInstance means that a domain of that name runs as another instance.
	ErrOtherInstance = errors.New("another instance of the domain runs")
	// ErrState means that the domain's state does not allow the call (paused, or already
	// ending).
	ErrState = errors.New("the domain's state does not allow it")
	// ErrNoAgent means that no guest agent answers. One that refuses answers: see Refusal.
	ErrNoAgent = errors.New("no guest agent answers")
	// ErrBusy means that another program holds the guest's monitor.
	ErrBusy = errors.New("the guest's monitor is held by another program")
	// ErrUnavailable means that the hypervisor could not be reached.
	ErrUnavailable = errors.New("hypervisor unavailable")
)

// Refusal is the error of a request that the guest has answered, and does not follow.
type Refusal struct{ words string }

// maxWords bounds what is kept of a guest's words, in bytes.
const maxWords = 120

// Refused returns a Refusal. The guest's words are not trusted: they become one short line.
func Refused(words string) *Refusal {
	words = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, words)
	words = strings.Join(strings.Fields(words), " ")
	if len(words) > maxWords {
		words = strings.ToValidUTF8(words[:maxWords], "") + "…"
	}
	return &Refusal{words}
}

// Error implements error.
func (r *Refusal) Error() string { return "refused by the guest: " + r.Words() }

// Words returns the guest's words, in one short line.
func (r *Refusal) Words() string { return cmp.Or(r.words, "it does not say why") }

// Driver talks to one hypervisor. Any goroutine may call the methods at any time. A call
// that hangs does not delay a call about another domain. When ctx ends, the method
// returns, although the hypervisor may still be working.
type Driver interface {
	// List returns the running domains whose name passes the filter.
	List(ctx context.Context, ours func(name string) bool) ([]Domain, error)
	// Get returns one running domain. It works from libvirt's run directory
	// with Power unknown while libvirt cannot be asked.
	Get(ctx context.Context, name string) (Domain, error)
	// Ask requests a shutdown of exactly this instance. It thaws file systems that are frozen
	// where the guest agent is asked.
	Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error
	// Resume lets a paused or suspended instance run again.
	Resume(ctx context.Context, name string, i grace.Instance) error
	// Destroy ends exactly this instance, by force.
	Destroy(ctx context.Context, name string, i grace.Instance) error
	// Ended returns why an instance that is gone ended, EndUnknown if that is not known.
	Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error)
}

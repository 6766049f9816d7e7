package libvirt

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// failed makes a *hypervisor.Error of what went wrong, nil of nil.
func failed(op, domain string, err error) error {
	if err == nil {
		return nil
	}
	return &hypervisor.Error{Op: op, Domain: domain, Err: plain(err)}
}

// plain says what an error of libvirt means for the caller, in libvirt's own
// words; the binding's are for programmers. Other errors stay as they are.
func plain(err error) error {
	le, ok := err.(libvirt.Error) //nolint:errorlint // only the bare one: a wrapped one has been here
	if !ok {
		return err
	}
	e := callError{cause: le}
	switch le.Code {
	case libvirt.ERR_NO_DOMAIN:
		e.means = hypervisor.ErrNotFound
	case libvirt.ERR_OPERATION_INVALID:
		e.means = hypervisor.ErrState
	case libvirt.ERR_AGENT_UNRESPONSIVE, libvirt.ERR_AGENT_UNSYNCED, libvirt.ERR_AGENT_COMMAND_TIMEOUT,
		libvirt.ERR_AGENT_COMMAND_FAILED, libvirt.ERR_ARGUMENT_UNSUPPORTED: // the last: it has no agent channel
		e.means = hypervisor.ErrNoAgent
	default:
	}
	return e
}

// callError is an error of libvirt, with the sentinel that it amounts to.
type callError struct {
	cause libvirt.Error
	means error // nil: nothing that a caller decides on
}

func (e callError) Error() string {
	if e.means == nil {
		return e.cause.Message
	}
	return fmt.Sprintf("%v: %s", e.means, e.cause.Message)
}

func (e callError) Is(target error) bool { return errors.Is(e.means, target) }

func (e callError) Unwrap() error { return e.cause }

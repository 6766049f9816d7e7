package libvirt

import (
	"errors"
	"fmt"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// failed adds what was tried to an error, if any.
func failed(op, domain string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, domain, plain(err))
}

// plain translates an error of libvirt for the caller, and keeps libvirt's own message,
// because the binding's text is for programmers. Other errors stay as they are.
func plain(err error) error {
	le, ok := err.(libvirt.Error) //nolint:errorlint // only the bare one: a wrapped one has been here
	if !ok {
		return err
	}
	switch le.Code {
	case libvirt.ERR_NO_DOMAIN:
		return fmt.Errorf("%w: %s", hypervisor.ErrNotFound, le.Message)
	case libvirt.ERR_OPERATION_INVALID:
		return fmt.Errorf("%w: %s", hypervisor.ErrState, le.Message)
	case libvirt.ERR_AGENT_COMMAND_FAILED, libvirt.ERR_INTERNAL_ERROR:
		if words, refused := refusal(le); refused {
			return hypervisor.Refused(words)
		}
		return errors.New(le.Message)
	case libvirt.ERR_AGENT_UNRESPONSIVE, libvirt.ERR_AGENT_UNSYNCED, libvirt.ERR_AGENT_COMMAND_TIMEOUT,
		libvirt.ERR_ARGUMENT_UNSUPPORTED: // the last: it has no agent channel
		return fmt.Errorf("%w: %s", hypervisor.ErrNoAgent, le.Message)
	default:
		return errors.New(le.Message)
	}
}

// refusal returns the guest's own words if its agent has refused to shut it down. libvirt 9.0 says
// that by an internal error.
func refusal(err libvirt.Error) (words string, refused bool) {
	_, words, refused = strings.Cut(err.Message, "QEMU agent command 'guest-shutdown': ")
	return words, refused
}

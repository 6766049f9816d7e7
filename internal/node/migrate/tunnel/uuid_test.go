package tunnel

import (
	"errors"
	"testing"
)

// libvirt would choose a UUID for an empty one, so the domain would not be the
// agreed one.
func TestADomainWithoutTheAgreedUUIDIsRefused(t *testing.T) {
	const is = "<uuid>" + domainUUID + "</uuid>"
	for name, with := range map[string]string{
		"an empty element": "<uuid/>", "no text": "<uuid></uuid>", "a blank": "<uuid> </uuid>", "a line": "<uuid>\n</uuid>",
		"a word": "<uuid>x</uuid>", "braces": "<uuid>{" + domainUUID + "}</uuid>", "a comment": "<uuid><!-- " + domainUUID + " --></uuid>",
		"only an attribute": `<uuid value="` + domainUUID + `"/>`, "the right one second": "<uuid/>" + is, "the right one first": is + "<uuid/>",
	} {
		_, err := played(t, replaced(is, with)(t, recorded(t, "source.bin")))
		if r, refused := errors.AsType[*Refusal](err); !refused || r.Reason != ReasonDomain {
			t.Errorf("%s: %v", name, err)
		}
	}
}

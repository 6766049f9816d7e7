package nodemigration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// URITemplate is where libvirt of this node reaches that of another one, with
// {{address}} for the other one's host. The zero value is none: guests are sent
// through the agents.
type URITemplate struct{ before, after string }

const (
	addressMark = "{{address}}"
	// probe stands for a host while a template is read.
	probe = "target.invalid"
	// tlsScheme has libvirt's connection encrypted, and the guest's memory with it.
	tlsScheme = "qemu+tls"
)

// hostName is what a name of a host may be: nothing that means something in a URI.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

const maxHostName = 253

var errNotOnce = errors.New("must have " + addressMark + " once, where the host is: qemu+tls://" + addressMark + "/system")

// ParseURITemplate reads what an operator writes. An empty text is the zero value.
func ParseURITemplate(text string) (URITemplate, error) {
	if text == "" {
		return URITemplate{}, nil
	}
	before, after, found := strings.Cut(text, addressMark)
	if !found || strings.Contains(after, addressMark) {
		return URITemplate{}, errNotOnce
	}
	u, err := url.Parse(before + probe + after)
	if err != nil {
		return URITemplate{}, fmt.Errorf("no URI: %w", errors.Unwrap(err))
	}
	// Those that reach another host; ext would run a command.
	schemes := []string{tlsScheme, "qemu+tcp", "qemu+ssh", "qemu+libssh", "qemu+libssh2"}
	switch {
	case u.Hostname() != probe:
		return URITemplate{}, errNotOnce
	case !slices.Contains(schemes, u.Scheme) || !strings.HasPrefix(text, u.Scheme+"://"):
		return URITemplate{}, fmt.Errorf("must begin with one of %s", strings.Join(schemes, ", "))
	case u.Path != "/system" || u.Fragment != "":
		return URITemplate{}, errors.New("must be of a /system, which is what the other node's agent looks at")
	}
	return URITemplate{before, after}, nil
}

// Native tells whether libvirt sends guests by itself.
func (t URITemplate) Native() bool { return t != URITemplate{} }

// transport is how the guest's memory is sent then.
func (t URITemplate) transport() hypervisor.Transport {
	if strings.HasPrefix(t.before, tlsScheme+":") {
		return hypervisor.TransportNativeTLS
	}
	return hypervisor.TransportNative
}

// at is the URI of the node whose agent is at an address, host:port. The address is
// another node's word: of the URI it says the host, or nothing.
func (t URITemplate) at(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%.80q is no address of an agent", address)
	}
	ip, err := netip.ParseAddr(host)
	isName := err != nil && len(host) <= maxHostName && hostName.MatchString(host)
	isIP := err == nil && ip.Zone() == "" && !ip.IsUnspecified()
	switch {
	case isIP && ip.Is6():
		host = "[" + ip.String() + "]"
	case !isIP && !isName:
		return "", fmt.Errorf("the host of %.80q is neither an IP address nor a name", address)
	}
	return t.before + host + t.after, nil
}

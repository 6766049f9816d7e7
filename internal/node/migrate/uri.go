package migrate

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

// URITemplate is the URI of another node's libvirt, with {{address}} for the host. The zero
// value means that guests are sent through the agents.
type URITemplate struct{ before, after string }

const (
	addressMark = "{{address}}"
	// probe replaces the host while a template is parsed.
	probe = "target.invalid"
	// tlsScheme encrypts libvirt's connection and the guest's memory.
	tlsScheme = "qemu+tls"
)

// hostName matches host names without characters that have a meaning in a URI.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

const maxHostName = 253

var errNotOnce = errors.New("must have " + addressMark + " once, where the host is: qemu+tls://" + addressMark + "/system")

// ParseURITemplate parses the flag's value. An empty text is the zero value.
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
	// The schemes that reach another host. The scheme ext would run a command.
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

// Native reports whether libvirt sends guests directly.
func (t URITemplate) Native() bool { return t != URITemplate{} }

// transport returns how libvirt sends the guest's memory.
func (t URITemplate) transport() hypervisor.Transport {
	if strings.HasPrefix(t.before, tlsScheme+":") {
		return hypervisor.TransportNativeTLS
	}
	return hypervisor.TransportNative
}

// at returns the URI of the node whose agent has this address, host:port. The address comes
// from another node and is not trusted: it can only set the URI's host.
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

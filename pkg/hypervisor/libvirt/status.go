package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	kubevirtSpace = "http://kubevirt.io"
	agentChannel  = "org.qemu.guest_agent.0"
)

// status is what matters of a domain's XML: of <domstatus> in libvirt's run
// directory, or of <domain>, which has no pid.
type status struct {
	name, uuid string
	pid        int // 0: not stated
	agent      bool
	grace      string
}

// parseStatus reads XML as libvirt writes it.
func parseStatus(r io.Reader) (status, error) {
	p := statusParser{dec: xml.NewDecoder(r)}
	for {
		token, err := p.dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return status{}, fmt.Errorf("domain XML: %w", err)
		}
		if err := p.take(token); err != nil {
			return status{}, err
		}
	}
	if p.name == "" || p.uuid == "" {
		return status{}, errors.New("domain XML: no name or no uuid")
	}
	return p.status, nil
}

type statusParser struct {
	status
	dec  *xml.Decoder
	path []xml.Name // from the root to the present element
}

func (p *statusParser) take(token xml.Token) error {
	switch token := token.(type) {
	case xml.StartElement:
		p.path = append(p.path, token.Name)
		return p.open(token)
	case xml.EndElement:
		p.path = p.path[:len(p.path)-1]
	case xml.CharData:
		p.text(string(token))
	}
	return nil
}

func (p *statusParser) open(e xml.StartElement) error {
	switch {
	case len(p.path) == 1 && e.Name.Local == "domstatus":
		pid, err := strconv.ParseUint(attr(e, "pid"), 10, 31)
		if err != nil {
			return fmt.Errorf("domain XML: pid of QEMU: %w", err)
		}
		p.pid = int(pid)
	case p.in("devices", "channel", "target"):
		if attr(e, "name") == agentChannel {
			p.agent = attr(e, "state") == "connected"
		}
	}
	return nil
}

func (p *statusParser) text(text string) {
	switch {
	case p.in("name"):
		p.name += text
	case p.in("uuid"):
		p.uuid += text
	case p.inGrace():
		p.grace += strings.TrimSpace(text)
	}
}

// in tells whether the present element is at this path below <domain>.
func (p *statusParser) in(below ...string) bool {
	path := p.path
	if len(path) > 0 && path[0].Local == "domstatus" {
		path = path[1:]
	}
	return len(path) == 1+len(below) && path[0].Local == "domain" &&
		slices.EqualFunc(path[1:], below, func(n xml.Name, s string) bool { return n.Local == s })
}

// inGrace: KubeVirt writes <kubevirt:graceperiod> within <kubevirt:kubevirt>;
// others leave out the wrapper, or the prefix of the child.
func (p *statusParser) inGrace() bool {
	n := len(p.path)
	if n < 3 || p.path[n-1].Local != "deletionGracePeriodSeconds" {
		return false
	}
	parent := p.path[n-2]
	return parent.Local == "graceperiod" && parent.Space == kubevirtSpace &&
		slices.ContainsFunc(p.path[:n-2], func(n xml.Name) bool { return n.Local == "metadata" })
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Space == "" && a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const agentChannel = "org.qemu.guest_agent.0"

// status is the part of a domain's XML that counts: of <domstatus> in libvirt's run
// directory, or of <domain>, which has no pid.
type status struct {
	name, uuid string
	pid        int // 0: not stated
	agent      bool
	grace      string
}

type domstatusXML struct {
	XMLName   xml.Name
	PID       string    `xml:"pid,attr"`
	Domain    domainXML `xml:"domain"`
	domainXML           // where <domain> is the root
}

type domainXML struct {
	Name    string `xml:"name"`
	UUID    string `xml:"uuid"`
	Targets []struct {
		Name  string `xml:"name,attr"`
		State string `xml:"state,attr"`
	} `xml:"devices>channel>target"`
	Metadata struct {
		Grace graceXML `xml:"http://kubevirt.io graceperiod"`
		// KubeVirt wraps it in an element of its own, others do not.
		Wrappers []struct {
			Grace graceXML `xml:"http://kubevirt.io graceperiod"`
		} `xml:",any"`
	} `xml:"metadata"`
}

type graceXML struct {
	Seconds string `xml:"deletionGracePeriodSeconds"`
}

// parseStatus reads XML as libvirt writes it.
func parseStatus(r io.Reader) (status, error) {
	var doc domstatusXML
	if err := xml.NewDecoder(r).Decode(&doc); err != nil {
		return status{}, fmt.Errorf("domain XML: %w", err)
	}
	dom, pid := doc.domainXML, uint64(0)
	if doc.XMLName.Local == "domstatus" {
		var err error
		if pid, err = strconv.ParseUint(doc.PID, 10, 31); err != nil {
			return status{}, fmt.Errorf("domain XML: pid of QEMU: %w", err)
		}
		dom = doc.Domain
	}
	if dom.Name == "" || dom.UUID == "" {
		return status{}, errors.New("domain XML: no name or no uuid")
	}
	s := status{name: dom.Name, uuid: dom.UUID, pid: int(pid), grace: dom.Metadata.Grace.Seconds}
	for _, w := range dom.Metadata.Wrappers {
		s.grace += w.Grace.Seconds
	}
	s.grace = strings.TrimSpace(s.grace)
	for _, t := range dom.Targets {
		s.agent = s.agent || t.Name == agentChannel && t.State == "connected"
	}
	return s, nil
}

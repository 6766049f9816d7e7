package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
)

// sentXML returns the XML of a domain for its migration. whole means that it differs from
// what libvirt would send. libvirt 9.0 leaves out the backing chain of a disk that it has
// found in the image's header (virDomainDiskBackingStoreFormat). The target's libvirt
// would then find it in an image that another node may have changed meanwhile.
func sentXML(dom *libvirt.Domain) (text string, whole bool, err error) {
	sent, err := dom.GetXMLDesc(libvirt.DOMAIN_XML_MIGRATABLE)
	if err != nil {
		return "", false, plain(err)
	}
	live, err := dom.GetXMLDesc(0)
	if err != nil {
		return "", false, plain(err)
	}
	text, err = withChains(sent, live)
	return text, text != sent, err
}

// diskText is the position of a disk's XML in that of its domain.
type diskText struct {
	target      string // its name in the guest
	source      int    // the end of its source; 0 if it has none
	chain       string // its backingStore, "" for none
	chainOffset int
}

// withChains puts the backing chains of a live domain's disks into the XML that is sent,
// if they are missing there.
func withChains(sent, live string) (string, error) {
	to, err := diskTexts(sent)
	if err != nil {
		return "", fmt.Errorf("the XML that a migration sends: %w", err)
	}
	from, err := diskTexts(live)
	if err != nil {
		return "", fmt.Errorf("the XML of the domain: %w", err)
	}
	slices.Reverse(to) // the offsets stay valid
	for _, d := range to {
		i := slices.IndexFunc(from, func(f diskText) bool { return f.target == d.target })
		if i >= 0 && d.chain == "" && d.source > 0 {
			sent = sent[:d.source] + indexes.ReplaceAllString(from[i].chain, "") + sent[d.source:]
		}
	}
	return sent, nil
}

// indexes matches the numbers that this host's libvirt has given to the levels.
var indexes = regexp.MustCompile(` index=('[0-9]*'|"[0-9]*")`)

// diskTexts finds the disks of a domain.
func diskTexts(text string) (disks []diskText, err error) {
	d := xml.NewDecoder(strings.NewReader(text))
	for path := []string(nil); ; {
		start := int(d.InputOffset())
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return disks, nil
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // the caller says of what
		}
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			switch strings.Join(path, "/") {
			case "domain/devices/disk":
				disks = append(disks, diskText{})
			case "domain/devices/disk/backingStore":
				disks[len(disks)-1].chainOffset = start
			case "domain/devices/disk/target":
				for _, a := range t.Attr {
					if a.Name.Local == "dev" {
						disks[len(disks)-1].target = a.Value
					}
				}
			}
		case xml.EndElement:
			if len(path) == 0 {
				return nil, errors.New("elements that do not nest")
			}
			switch last := len(disks) - 1; strings.Join(path, "/") {
			case "domain/devices/disk/source":
				disks[last].source = int(d.InputOffset())
			case "domain/devices/disk/backingStore":
				disks[last].chain = text[disks[last].chainOffset:d.InputOffset()]
			}
			path = path[:len(path)-1]
		}
	}
}

package tunnel

import "strings"

// The procedures that one incoming migration calls (remote_protocol.x).
const (
	procOpen             = 1
	procClose            = 2
	procSupportsFeature  = 60
	procAuthList         = 66
	procPrepareTunnel    = 304
	procFinish           = 306
	procRegisterClose    = 360
	procUnregisterClose  = 361
	procConnectionClosed = 362 // an event
)

const (
	systemURI = "qemu:///system"
	// flags are libvirt's LIVE, PEER2PEER, TUNNELLED and PAUSED. The source does not send
	// flags that concern only itself (auto-converge).
	flags = 0x27
	// maxText bounds the XML of a domain or a cookie.
	maxText = maxFrame / 2
	maxName = 256
	// typeULLong and typeString are of virTypedParameterType.
	typeULLong, typeString = 4, 7
	// maxParams is the number of typed parameters that a migration may have.
	maxParams = 4
)

// params holds the typed parameters of a migration that the target uses.
type params struct{ xml, name string }

// params reads typed parameters: known ones, each at most once.
func (d *decoder) params() (p params) {
	seen := map[string]bool{}
	count := d.uint32()
	if count > maxParams {
		d.fail("list has more parameters than there are")
	}
	for range count {
		if d.err != nil {
			return p
		}
		field, typ := d.string(maxName), d.uint32()
		if seen[field] {
			d.fail("list has " + quoted(field) + " twice")
		}
		seen[field] = true
		switch {
		case field == "destination_xml" && typ == typeString:
			p.xml = d.string(maxText)
		case field == "destination_name" && typ == typeString:
			p.name = d.string(maxName)
		case (field == "bandwidth" || field == "bandwidth.postcopy") && typ == typeULLong:
			d.uint64() // concerns only the source: not passed on
		default:
			d.fail("list has an unknown parameter " + quoted(field))
		}
	}
	if d.err == nil && (p.xml == "" || p.name == "") {
		d.fail("list has no destination_xml or no destination_name")
	}
	return p
}

func (p *params) put(b []byte) []byte {
	b = putUint32(b, 2)
	b = putOpaque(putUint32(putOpaque(b, "destination_xml"), typeString), p.xml)
	return putOpaque(putUint32(putOpaque(b, "destination_name"), typeString), p.name)
}

// open checks the arguments of CONNECT_OPEN: a URI could name any host, or a command.
func open(body []byte) error {
	d := decoder{rest: body}
	there := d.uint32()
	uri := ""
	if there == 1 {
		uri = d.string(maxName)
	}
	openFlags := d.uint32()
	if err := d.end(); err != nil {
		return err
	}
	if there != 1 || uri != systemURI || openFlags != 0 {
		return refuse(ReasonParam, "a connection to %s with flags %#x; only %s is served", quoted(uri), openFlags, systemURI)
	}
	return nil
}

// feature checks the argument of CONNECT_SUPPORTS_FEATURE, a number.
func feature(body []byte) error {
	d := decoder{rest: body}
	d.uint32()
	return d.end()
}

// prepared has the parameters of PREPARE, which FINISH must repeat.
type prepared struct {
	raw    params // as read
	params params // as passed on
}

// prepare checks the arguments of DOMAIN_MIGRATE_PREPARE_TUNNEL3_PARAMS and serializes them
// again.
func (a *Agreement) prepare(body []byte) (p prepared, out []byte, err error) {
	d := decoder{rest: body}
	p.raw = d.params()
	cookie, given := d.cookie(), d.uint32()
	if err := d.end(); err != nil {
		return p, nil, err
	}
	if given != flags {
		return p, nil, refuse(ReasonParam, "flags %#x of a migration; only %#x is served", given, flags)
	}
	if p.raw.name != a.Domain {
		return p, nil, refuse(ReasonParam, "destination_name %s; %s was agreed", quoted(p.raw.name), a.Domain)
	}
	p.params = p.raw
	if p.params.xml, err = a.domain(p.raw.xml); err != nil {
		return p, nil, err
	}
	if cookie, err = a.cookie(cookie); err != nil {
		return p, nil, err
	}
	return p, putUint32(putCookie(p.params.put(nil), cookie), given), nil
}

// finish checks the arguments of DOMAIN_MIGRATE_FINISH3_PARAMS, which must have the parameters
// of PREPARE, and serializes them again.
func (a *Agreement) finish(p *prepared, body []byte) (out []byte, cancelled bool, err error) {
	d := decoder{rest: body}
	given := d.params()
	cookie, flagsGiven, cancel := d.cookie(), d.uint32(), d.uint32()
	if err := d.end(); err != nil {
		return nil, false, err
	}
	switch {
	case given != p.raw:
		return nil, false, refuse(ReasonParam, "an end of another migration than was prepared")
	case flagsGiven != flags || cancel > 1:
		return nil, false, refuse(ReasonParam, "flags %#x, cancelled %d at a migration's end; only %#x is served", flagsGiven, cancel, flags)
	}
	if cookie != "" || cancel == 0 {
		if cookie, err = a.cookie(cookie); err != nil {
			return nil, false, err
		}
	}
	out = putCookie(p.params.put(nil), cookie)
	return putUint32(putUint32(out, flagsGiven), cancel), cancel == 1, nil
}

// cookie reads a migration cookie, which has a NUL byte at its end.
func (d *decoder) cookie() string {
	b := d.opaque(maxText)
	if len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return string(b)
}

func putCookie(b []byte, cookie string) []byte {
	if cookie == "" {
		return putUint32(b, 0)
	}
	return putOpaque(b, cookie+"\x00")
}

// quoted makes text of the source printable, short and one line.
func quoted(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most] + "..."
	}
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return '?'
		}
		return r
	}, s) + `"`
}

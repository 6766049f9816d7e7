package tunnel

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	wordPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:+-]*$`)
	numberPattern  = regexp.MustCompile(`^-?[0-9]{1,20}(\.[0-9]{1,9})?$`)
	rangePattern   = regexp.MustCompile(`^(-?(0|[1-9][0-9]{0,17})|0x[0-9a-fA-F]{1,8})$`)
	setPattern     = regexp.MustCompile(`^[0-9,^-]+$`)
	hostPattern    = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	uuidPattern    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	macPattern     = regexp.MustCompile(`^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$`)
	ifnamePattern  = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)
	zonePattern    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)
	pathPattern    = regexp.MustCompile(`^/[^\x00-\x1f\x7f]+$`)
	emulator       = regexp.MustCompile(`^(/usr/bin|/usr/libexec)/(qemu-system-[a-z0-9_]+|qemu-kvm|kvm)$`)
	counterPattern = regexp.MustCompile(`^[a-z_]+$`)
)

// Bounds that apply if the agreement has none. The memory is in KiB, as libvirt formats
// it.
const (
	maxMemory = 16 << 30
	maxCPUs   = 1024
)

// pattern returns the pattern of a kind, nil if it has none, and the maximum length of a
// value. The length is not in the pattern: a bounded repetition costs 1 KiB per step.
func pattern(kind string) (p *regexp.Regexp, longest int) {
	switch kind {
	case "word":
		return wordPattern, 128
	case "number":
		return numberPattern, maxTextValue
	case "set":
		return setPattern, 256
	case "host":
		return hostPattern, 253
	case "uuid":
		return uuidPattern, maxTextValue
	case "mac":
		return macPattern, maxTextValue
	case "ifname":
		return ifnamePattern, 15
	case "zone":
		return zonePattern, 64
	case "program":
		return emulator, maxTextValue
	default:
		return nil, 0
	}
}

// value checks that a value is of a kind.
func (c *checker) value(kind, v, where string) error {
	var ok bool
	switch p, longest := pattern(kind); {
	case p != nil:
		ok = len(v) <= longest && p.MatchString(v)
	case kind == "free":
		ok = len(v) <= maxTextValue
	case kind == "name":
		ok = v == c.agreed.Domain
	case kind == "agreed-uuid":
		ok = v == c.agreed.UUID
	case isPath(kind):
		var found hostPath
		found, ok = c.agreed.place(kind, v)
		found.where = where
		c.paths = append(c.paths, found)
	default:
		ok = c.agreed.takes(kind, v)
	}
	if ok {
		return nil
	}
	return c.denied(kind, v, where)
}

// takes reports whether a value is what this host has or allows, or one of those that the kind lists.
func (a *Agreement) takes(kind, v string) bool {
	switch kind {
	case "network":
		return slices.Contains(a.Networks, v)
	case "listen":
		return v == loopback || v == "::1" || slices.Contains(a.Listen, v)
	case "cpuset":
		return within(v, a.Processors)
	case "nodeset":
		return within(v, a.NUMANodes)
	case "memory":
		return inRange(v, 0, a.memory())
	case "cpus":
		return inRange(v, 1, a.cpus())
	default:
		return oneOf(kind, v)
	}
}

// denied returns the refusal of a value.
func (c *checker) denied(kind, v, where string) error {
	switch {
	case kind == "program" || kind == "network" || isPath(kind):
		return refuse(ReasonPath, "%s for %s: not allowed on this node, see --migration-allow-paths, --migration-allow-firmware and --migration-allow-networks", quoted(v), quoted(where))
	case kind == "listen":
		return refuse(ReasonPath, "%s for %s: not an address that VMs may listen on here, see --migration-allow-listen", quoted(v), quoted(where))
	case kind == "cpuset":
		return refuse(c.reason, "%s for %s: this node has the processors %s", quoted(v), quoted(where), c.agreed.Processors)
	case kind == "nodeset":
		return refuse(c.reason, "%s for %s: this node has the NUMA nodes %s", quoted(v), quoted(where), c.agreed.NUMANodes)
	case kind == "memory" || kind == "cpus":
		return refuse(c.reason, "%s for %s: more than this node takes (%d KiB, %d CPUs)", quoted(v), quoted(where), c.agreed.memory(), c.agreed.cpus())
	default:
		return refuse(c.reason, "%s for %s", quoted(v), quoted(where))
	}
}

// memory returns the most memory of a domain in KiB.
func (a *Agreement) memory() int64 {
	if most := a.Memory / 1024; a.Memory != 0 && most < maxMemory {
		return int64(most)
	}
	return maxMemory
}

// cpus returns the most processors of a domain.
func (a *Agreement) cpus() int64 {
	if a.CPUs > 0 && a.CPUs < maxCPUs {
		return int64(a.CPUs)
	}
	return maxCPUs
}

// oneOf reports whether a value is one of those separated by |: words, and ranges of
// numbers such as 0..31.
func oneOf(kind, v string) bool {
	for each := range strings.SplitSeq(kind, "|") {
		low, high, isRange := strings.Cut(each, "..")
		if !isRange {
			if v == each {
				return true
			}
			continue
		}
		from, err := strconv.ParseInt(low, 10, 64)
		to, err2 := strconv.ParseInt(high, 10, 64)
		if err == nil && err2 == nil && inRange(v, from, to) {
			return true
		}
	}
	return false
}

// within reports whether a set such as 0-3,^2,7 names only members of another, as the kernel
// writes it, such as 0-7. If that is unknown ("") libvirt finds out.
func within(set, members string) bool {
	if len(set) > 256 {
		return false
	}
	for each := range strings.SplitSeq(set, ",") {
		from, to, ok := span(strings.TrimPrefix(each, "^"))
		for n := from; ok && n <= to && members != ""; n++ {
			ok = slices.ContainsFunc(strings.Split(members, ","), func(m string) bool {
				low, high, known := span(m)
				return known && n >= low && n <= high
			})
		}
		if !ok {
			return false
		}
	}
	return true
}

// span reads 3 or 0-3, up to maxCPUs.
func span(text string) (from, to int64, ok bool) {
	low, high, isSpan := strings.Cut(text, "-")
	if !isSpan {
		high = low
	}
	ok = inRange(low, 0, maxCPUs) && inRange(high, 0, maxCPUs)
	from, _ = numeric(low)
	to, _ = numeric(high)
	return from, to, ok && from <= to
}

// inRange reports whether text is a number of a range. A leading zero is refused: libvirt
// reads such a number as octal in some places.
func inRange(text string, from, to int64) bool {
	n, ok := numeric(text)
	return ok && n >= from && n <= to
}

// numeric reads a number, which may be hexadecimal.
func numeric(text string) (int64, bool) {
	if !rangePattern.MatchString(text) {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 0, 64)
	return n, err == nil
}

package tunnel

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	wordPattern    = regexp.MustCompile(`^[A-Za-z0-9_.:+-]+$`)
	numberPattern  = regexp.MustCompile(`^-?(0x[0-9a-fA-F]{1,16}|[0-9]{1,20}(\.[0-9]{1,9})?)$`)
	setPattern     = regexp.MustCompile(`^[0-9,^-]+$`)
	hostPattern    = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	uuidPattern    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	pathPattern    = regexp.MustCompile(`^/[^\x00-\x1f\x7f]+$`)
	emulator       = regexp.MustCompile(`^(/usr/bin|/usr/libexec)/(qemu-system-[a-z0-9_]+|qemu-kvm|kvm)$`)
	counterPattern = regexp.MustCompile(`^[a-z_]+$`)
)

const (
	kubevirtNamespace = "http://kubevirt.io"
	maxTextValue      = 4096
	maxCounter        = 64
)

// domain checks a domain's XML and serializes it again.
func (a *Agreement) domain(text string) (string, error) {
	return a.rewrite(text, newDomainSchema(), ReasonDomain)
}

// cookie checks a migration cookie and serializes it again.
func (a *Agreement) cookie(text string) (string, error) {
	return a.rewrite(text, newCookieSchema(), ReasonCookie)
}

func (a *Agreement) rewrite(text string, s *schema, reason string) (string, error) {
	root, err := a.read(text, s, reason)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	root.write(&b)
	b.WriteByte('\n')
	return b.String(), nil
}

// read parses XML and checks it against the schema and the agreed domain.
func (a *Agreement) read(text string, s *schema, reason string) (*node, error) {
	root, err := parse(text, reason)
	if err != nil {
		return nil, err
	}
	c := checker{agreed: a, reason: reason}
	if err := c.element(s, root, root.name); err != nil {
		return nil, err
	}
	// The values of name and UUID were checked; here they must exist.
	for _, must := range []string{"name", "uuid"} {
		if root.child(must) == nil {
			return nil, refuse(reason, "XML without a %s", must)
		}
	}
	return root, nil
}

// schema is what an element may have.
type schema struct {
	attrs    map[string]string // name to kind of value
	text     string            // kind, "" for none
	children map[string]*schema
}

// newSchema parses a table with one element per line: its path, its attributes as name=kind,
// =kind if it has text, and ^ if it may contain itself. A kind is one of checker.value, or
// the allowed values separated by |.
func newSchema(table string) *schema {
	root := &schema{children: map[string]*schema{}}
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		at := root
		for name := range strings.SplitSeq(fields[0], "/") {
			if at.children[name] == nil {
				at.children[name] = &schema{attrs: map[string]string{}, children: map[string]*schema{}}
			}
			at = at.children[name]
		}
		for _, field := range fields[1:] {
			switch name, kind, _ := strings.Cut(field, "="); name {
			case "":
				at.text = kind
			case "^":
				at.children[path.Base(fields[0])] = at
			default:
				at.attrs[name] = kind
			}
		}
	}
	return root
}

func (s *schema) child(name string) *schema {
	if c := s.children[name]; c != nil {
		return c
	}
	if len(name) <= maxCounter && counterPattern.MatchString(name) {
		return s.children["*"]
	}
	return nil
}

// checker checks parsed XML against a schema.
type checker struct {
	agreed *Agreement
	reason string
}

// once are elements that must not be repeated: this package and libvirt might use different
// ones.
const once = " name uuid metadata os devices source emulator kernel initrd loader nvram driver target listen statistics capabilities cpu "

func (c *checker) element(parent *schema, n *node, where string) error {
	s := parent.child(n.name)
	if s == nil {
		return refuse(c.reason, "an element %s", quoted(where))
	}
	for _, a := range n.attrs {
		kind, known := s.attrs[a[0]]
		if !known {
			return refuse(c.reason, "an attribute %s of %s", quoted(a[0]), quoted(where))
		}
		if err := c.value(kind, a[1], where+" "+a[0]); err != nil {
			return err
		}
	}
	if err := c.text(s, n, where); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, child := range n.children {
		if seen[child.name] && strings.Contains(once, " "+child.name+" ") {
			return refuse(c.reason, "a second element %s", quoted(where+"/"+child.name))
		}
		seen[child.name] = true
		if err := c.element(s, child, where+"/"+child.name); err != nil {
			return err
		}
	}
	return c.whole(n, where)
}

func (c *checker) text(s *schema, n *node, where string) error {
	switch {
	case s.text == "" && strings.TrimSpace(n.text) == "":
		return nil
	case s.text == "" || len(n.children) > 0:
		return refuse(c.reason, "text in %s", quoted(where))
	default:
		return c.value(s.text, n.text, where)
	}
}

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
	case "emulator":
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
	case kind == "kubevirt":
		ok = v == kubevirtNamespace
	case kind == "path":
		ok = c.agreed.allows(v)
	case kind == "network":
		ok = slices.Contains(c.agreed.Networks, v)
	default:
		ok = slices.Contains(strings.Split(kind, "|"), v)
	}
	if ok {
		return nil
	}
	if kind == "emulator" || kind == "path" || kind == "network" {
		return refuse(ReasonPath, "%s for %s: not allowed on this node, see --migration-allow-paths and --migration-allow-networks", quoted(v), quoted(where))
	}
	return refuse(c.reason, "%s for %s", quoted(v), quoted(where))
}

// allows reports whether a path is an allowed one, or below one. A path that is not clean
// ("..", "//") is not allowed.
func (a *Agreement) allows(p string) bool {
	if len(p) > maxTextValue || !pathPattern.MatchString(p) || path.Clean(p) != p {
		return false
	}
	return slices.ContainsFunc(a.Paths, func(allowed string) bool {
		allowed = path.Clean(allowed)
		return p == allowed || strings.HasPrefix(p, strings.TrimSuffix(allowed, "/")+"/")
	})
}

// whole checks conditions on more than one value.
func (c *checker) whole(n *node, where string) error {
	switch {
	case n.name == "graphics" && n.attr("listen") == "" && n.child("listen") == nil:
		return refuse(ReasonPath, "graphics without an address to listen on, which is for libvirt to choose then")
	case n.name == "listen" && n.attr("type") == "address" && n.attr("address") == "":
		return refuse(ReasonPath, "%s without an address", quoted(where))
	case n.name == "interface" && n.attr("type") != "user" && n.child("source") == nil:
		return refuse(ReasonPath, "an interface that does not say what it is connected to")
	default:
		return nil
	}
}

package tunnel

import (
	"path"
	"strings"
)

const (
	maxTextValue = 4096
	maxCounter   = 64
	// maxMetadata bounds what others have written into a domain, in bytes.
	maxMetadata = 64 << 10
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
	c := checker{agreed: a, reason: reason, conditions: conditions()}
	if err := c.element(s, root, root.name); err != nil {
		return nil, err
	}
	if a.Files != nil && len(c.paths) > 0 {
		if err := a.Files.look(c.paths); err != nil {
			return nil, err
		}
	}
	// The values of name and UUID were checked; here they must exist.
	for _, must := range []string{"name", "uuid"} {
		if root.child(must) == nil {
			return nil, refuse(reason, "XML without a %s", must)
		}
	}
	return root, nil
}

// schema holds what an element may have.
type schema struct {
	attrs    map[string]string // name to kind of value
	text     string            // kind, "" for none
	children map[string]*schema
}

// newSchema parses a table with one element per line: its path, its attributes as name=kind,
// =kind if it has text, and ^ if it may contain itself. A kind is one of checker.value, the
// allowed values separated by |, or any for whatever is in the element, up to maxMetadata.
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
	paths  []hostPath // found in the XML
	// conditions check more than one value, by element.
	conditions map[string]func(*checker, *node) error
}

// once lists elements that must not be repeated: this package and libvirt might use
// different ones.
const once = " name uuid metadata os devices source emulator kernel initrd dtb loader nvram driver target listen statistics capabilities cpu " +
	"memory currentMemory maxMemory memoryBacking access numa iothreads iothreadids clock backingStore format model "

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
	if s.text == "any" {
		if size := n.size(); size > maxMetadata {
			return refuse(c.reason, "%d bytes in %s; %d are allowed", size, quoted(where), maxMetadata)
		}
		return nil
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
	if whole := c.conditions[where]; whole != nil {
		return whole(c, n)
	}
	return nil
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

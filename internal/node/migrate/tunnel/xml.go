package tunnel

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
)

// Bounds of the XML: libvirt's own stays far below.
const (
	maxDepth  = 24
	maxTokens = 40_000
)

// node is a parsed element. A namespace prefix is part of its name.
type node struct {
	name     string
	attrs    [][2]string
	text     string
	children []*node
}

// parser builds a tree of nodes.
type parser struct {
	reason string
	open   []*node // the open elements; the first is a parent for the root element
	tokens int
}

// parse parses XML with nothing but elements, attributes, text and comments. It drops the
// comments.
func parse(text, reason string) (*node, error) {
	if len(text) > maxFrame {
		return nil, refuse(reason, "XML of %d bytes", len(text))
	}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Entity = map[string]string{}
	root := &node{}
	p := parser{reason: reason, open: []*node{root}}
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, refuse(reason, "XML that cannot be read: %s", quoted(err.Error()))
		}
		if err := p.take(token); err != nil {
			return nil, err
		}
	}
	if len(p.open) != 1 || len(root.children) != 1 || strings.TrimSpace(root.text) != "" {
		return nil, refuse(reason, "XML that is not one element")
	}
	return root.children[0], nil
}

func (p *parser) take(token xml.Token) error {
	if p.tokens++; p.tokens > maxTokens || len(p.open) > maxDepth {
		return refuse(p.reason, "XML that is too large or too deep")
	}
	top := p.open[len(p.open)-1]
	switch t := token.(type) {
	case xml.StartElement:
		n, err := element(&t, p.reason)
		if err != nil {
			return err
		}
		top.children = append(top.children, n)
		p.open = append(p.open, n)
	case xml.EndElement:
		// RawToken does not compare the names.
		if len(p.open) == 1 || qualified(t.Name) != top.name {
			return refuse(p.reason, "XML whose elements do not nest")
		}
		p.open = p.open[:len(p.open)-1]
	case xml.CharData:
		top.text += string(t)
	case xml.Comment:
	default:
		return refuse(p.reason, "XML with a document type or an instruction")
	}
	return nil
}

func element(t *xml.StartElement, reason string) (*node, error) {
	n := &node{name: qualified(t.Name)}
	for _, a := range t.Attr {
		name := qualified(a.Name)
		for _, other := range n.attrs {
			if other[0] == name {
				return nil, refuse(reason, "attribute %s twice", quoted(name))
			}
		}
		n.attrs = append(n.attrs, [2]string{name, a.Value})
	}
	return n, nil
}

// qualified returns a name with its prefix: a schema has no elements of unknown
// namespaces.
func qualified(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}

// write serializes a node.
func (n *node) write(b *strings.Builder) {
	b.WriteString("<" + n.name)
	for _, a := range n.attrs {
		b.WriteString(" " + a[0] + `="`)
		escape(b, a[1])
		b.WriteByte('"')
	}
	text := strings.TrimSpace(n.text)
	if text == "" && len(n.children) == 0 {
		b.WriteString("/>")
		return
	}
	b.WriteByte('>')
	if len(n.children) == 0 {
		escape(b, n.text)
	}
	for _, c := range n.children {
		c.write(b)
	}
	b.WriteString("</" + n.name + ">")
}

func escape(b *strings.Builder, s string) {
	_ = xml.EscapeText(b, []byte(s)) // a Builder returns no error
}

// size returns about how many bytes an element has in XML.
func (n *node) size() int {
	size := len(n.name) + len(n.text)
	for _, a := range n.attrs {
		size += len(a[0]) + len(a[1])
	}
	for _, c := range n.children {
		size += c.size()
	}
	return size
}

func (n *node) attr(name string) string {
	for _, a := range n.attrs {
		if a[0] == name {
			return a[1]
		}
	}
	return ""
}

// child returns the first child of that name, nil if there is none.
func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

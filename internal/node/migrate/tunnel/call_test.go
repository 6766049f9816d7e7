package tunnel

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// arguments holds those of the recorded PREPARE and FINISH.
type arguments struct {
	xml, name, cookie string
	flags, cancelled  uint32
}

func recordedArguments(tb testing.TB) arguments {
	tb.Helper()
	for _, f := range recorded(tb, "source.bin") {
		if f.procedure == procPrepareTunnel && f.kind == kindCall {
			d := decoder{rest: f.body}
			p, cookie, given := d.params(), d.cookie(), d.uint32()
			if err := d.end(); err != nil {
				tb.Fatal(err)
			}
			return arguments{p.xml, p.name, cookie, given, 0}
		}
	}
	tb.Fatal("nothing is prepared")
	return arguments{}
}

func (a arguments) prepare() []byte {
	p := params{a.xml, a.name}
	return putUint32(putCookie(p.put([]byte{}), a.cookie), a.flags)
}

func (a arguments) finish() []byte { return putUint32(a.prepare(), a.cancelled) }

func param(name string, typ uint32, value []byte) []byte {
	return append(putUint32(putOpaque(nil, name), typ), value...)
}

func text(s string) []byte { return putOpaque(nil, s) }

func TestTypedParametersAreExact(t *testing.T) {
	number := make([]byte, 8)
	xml, name := param("destination_xml", typeString, text("x")), param("destination_name", typeString, text("n"))
	for what, c := range map[string]struct {
		passes bool
		list   [][]byte
	}{
		"both":                       {true, [][]byte{xml, name}},
		"all that there are":         {true, [][]byte{xml, name, param("bandwidth", typeULLong, number), param("bandwidth.postcopy", typeULLong, number)}},
		"no XML":                     {false, [][]byte{name}},
		"no name":                    {false, [][]byte{xml}},
		"none":                       {false, nil},
		"an empty XML":               {false, [][]byte{param("destination_xml", typeString, text("")), name}},
		"an empty name":              {false, [][]byte{xml, param("destination_name", typeString, text(""))}},
		"an XML that is a number":    {false, [][]byte{param("destination_xml", typeULLong, text("xxxx")), name}},
		"a name that is a number":    {false, [][]byte{xml, param("destination_name", typeULLong, text("nnnn"))}},
		"a bandwidth that is text":   {false, [][]byte{xml, name, param("bandwidth", typeString, text("1"))}},
		"a bandwidth of 32 bits":     {false, [][]byte{xml, name, param("bandwidth", 2, number[:4])}},
		"the other that is text":     {false, [][]byte{xml, name, param("bandwidth.postcopy", typeString, number)}},
		"XML by another name":        {false, [][]byte{xml, name, param("persistent_xml", typeString, text("x"))}},
		"a list of disks":            {false, [][]byte{xml, name, param("migrate_disks", typeString, text("vda"))}},
		"a URI":                      {false, [][]byte{xml, name, param("migrate_uri", typeString, text("tcp://x"))}},
		"an address to listen on":    {false, [][]byte{xml, name, param("listen_address", typeString, text("0.0.0.0"))}},
		"a URI of disks":             {false, [][]byte{xml, name, param("disks_uri", typeString, text("unix:///x"))}},
		"a number twice":             {false, [][]byte{xml, name, param("bandwidth", typeULLong, number), param("bandwidth", typeULLong, number)}},
		"five":                       {false, [][]byte{xml, name, param("bandwidth", typeULLong, number), param("bandwidth.postcopy", typeULLong, number), param("x", typeULLong, number)}},
		"more than follow":           {false, [][]byte{xml}},
		"a name with a NUL behind":   {false, [][]byte{xml, param("destination_name", typeString, text("n\x00"))}},
		"a name that is no UTF-8":    {false, [][]byte{xml, param("destination_name", typeString, text("\xff"))}},
		"a name that is very long":   {false, [][]byte{xml, param("destination_name", typeString, text(strings.Repeat("n", maxName+1)))}},
		"a name that is just short":  {true, [][]byte{xml, param("destination_name", typeString, text(strings.Repeat("n", maxName)))}},
		"padding that is not zero":   {false, [][]byte{xml, param("destination_name", typeString, []byte{0, 0, 0, 1, 'n', 0, 0, 1})}},
		"a length beyond the end":    {false, [][]byte{xml, param("destination_name", typeString, []byte{0, 0, 0, 9, 'n', 0, 0, 0})}},
		"a length that is negative":  {false, [][]byte{xml, param("destination_name", typeString, []byte{255, 255, 255, 255, 'n', 0, 0, 0})}},
		"a value that is cut":        {false, [][]byte{xml, param("destination_name", typeString, []byte{0, 0})}},
		"a value without padding":    {false, [][]byte{xml, param("destination_name", typeString, []byte{0, 0, 0, 1, 'n'})}},
		"a value of exactly 4 bytes": {true, [][]byte{xml, param("destination_name", typeString, text("name"))}},
	} {
		count := uint32(len(c.list))
		if what == "more than follow" {
			count++
		}
		d := decoder{rest: slices.Concat(append([][]byte{putUint32(nil, count)}, c.list...)...)}
		p := d.params()
		if err := d.end(); (err == nil) != c.passes || err != nil && !isRefusal(err) || c.passes && (p.xml != "x" || p.name == "") {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
}

func TestTheArgumentsOfPrepareAreExact(t *testing.T) {
	agreed := agreement()
	for what, c := range map[string]struct {
		reason string // "" passes
		change func(a *arguments)
	}{
		"as recorded":       {"", func(*arguments) {}},
		"another name":      {ReasonParam, func(a *arguments) { a.name = "other" }},
		"one flag more":     {ReasonParam, func(a *arguments) { a.flags |= 1 << 20 }},
		"no flags":          {ReasonParam, func(a *arguments) { a.flags = 0 }},
		"one flag less":     {ReasonParam, func(a *arguments) { a.flags &^= 1 }},
		"no cookie":         {ReasonCookie, func(a *arguments) { a.cookie = "" }},
		"an empty cookie":   {ReasonCookie, func(a *arguments) { a.cookie = "\x00" }},
		"NUL in the cookie": {ReasonCookie, func(a *arguments) { a.cookie += "\x00<nbd/>" }},
		"another domain":    {ReasonDomain, func(a *arguments) { a.xml = strings.Replace(a.xml, domainUUID, movedUUID, 1) }},
	} {
		a := recordedArguments(t)
		c.change(&a)
		_, out, err := agreed.prepare(a.prepare())
		if !refusedFor(err, c.reason) || (out == nil) != (err != nil) {
			t.Errorf("%s: %v; want %q", what, err, c.reason)
		}
	}
	body := recordedArguments(t).prepare()
	for _, cut := range []int{1, 4, len(body) / 2, len(body) - 1} {
		if _, _, err := agreed.prepare(body[:cut]); !refusedFor(err, ReasonParam) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	if _, _, err := agreed.prepare(append(body, 0, 0, 0, 0)); !refusedFor(err, ReasonParam) {
		t.Errorf("followed by more: %v", err)
	}
}

const movedUUID = "7ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"

// refusedFor reports whether an error is a refusal for a reason, or nil for "".
func refusedFor(err error, reason string) bool {
	if reason == "" {
		return err == nil
	}
	r, is := errors.AsType[*Refusal](err)
	return is && r.Reason == reason
}

func TestTheArgumentsOfFinishAreExact(t *testing.T) {
	agreed := agreement()
	p, _, err := agreed.prepare(recordedArguments(t).prepare())
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		reason string
		change func(a *arguments)
	}{
		"as prepared":                   {"", func(*arguments) {}},
		"cancelled":                     {"", func(a *arguments) { a.cancelled = 1 }},
		"cancelled, without a cookie":   {"", func(a *arguments) { a.cancelled, a.cookie = 1, "" }},
		"without a cookie":              {ReasonCookie, func(a *arguments) { a.cookie = "" }},
		"cancelled, with a bad cookie":  {ReasonCookie, func(a *arguments) { a.cancelled, a.cookie = 1, "<nbd/>" }},
		"with a bad cookie":             {ReasonCookie, func(a *arguments) { a.cookie = "<nbd/>" }},
		"cancelled twice":               {ReasonParam, func(a *arguments) { a.cancelled = 2 }},
		"cancelled with one flag more":  {ReasonParam, func(a *arguments) { a.cancelled = 1; a.flags |= 8 }},
		"one flag more: PERSIST_DEST":   {ReasonParam, func(a *arguments) { a.flags |= 8 }},
		"one flag less: PAUSED":         {ReasonParam, func(a *arguments) { a.flags &^= 32 }},
		"another flag, cancelled twice": {ReasonParam, func(a *arguments) { a.flags, a.cancelled = 0, 2 }},
		"another name":                  {ReasonParam, func(a *arguments) { a.name = "other" }},
		"another domain":                {ReasonParam, func(a *arguments) { a.xml += " " }},
	} {
		a := recordedArguments(t)
		c.change(&a)
		out, cancelled, err := agreed.finish(&p, a.finish())
		if !refusedFor(err, c.reason) || (out == nil) != (err != nil) || err == nil && cancelled != (a.cancelled == 1) {
			t.Errorf("%s: %t, %v; want %q", what, cancelled, err, c.reason)
		}
	}
	body := recordedArguments(t).finish()
	for _, cut := range []int{1, 4, len(body) / 2, len(body) - 4, len(body) - 1} {
		if _, _, err := agreed.finish(&p, body[:cut]); !refusedFor(err, ReasonParam) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	if _, _, err := agreed.finish(&p, append(body, 0, 0, 0, 0)); !refusedFor(err, ReasonParam) {
		t.Errorf("followed by more: %v", err)
	}
}

func TestTheArgumentsOfOtherCallsAreExact(t *testing.T) {
	uri := putOpaque(putUint32(nil, 1), systemURI)
	for what, c := range map[string]struct {
		passes bool
		body   []byte
	}{
		"as recorded":              {true, putUint32(uri, 0)},
		"read-only":                {false, putUint32(uri, 1)},
		"another URI":              {false, putUint32(putOpaque(putUint32(nil, 1), "qemu:///session"), 0)},
		"none":                     {false, putUint32(putUint32(nil, 0), 0)},
		"none, by another boolean": {false, putUint32(putOpaque(putUint32(nil, 2), systemURI), 0)},
		"more behind":              {false, append(putUint32(uri, 0), 0)},
		"cut":                      {false, uri},
	} {
		if err := open(c.body); (err == nil) != c.passes || err != nil && !refusedFor(err, ReasonParam) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, c := range map[string]struct {
		passes bool
		body   []byte
	}{"a number": {true, make([]byte, 4)}, "none": {false, nil}, "two": {false, make([]byte, 8)}} {
		if err := feature(c.body); (err == nil) != c.passes {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestACookieIsPassedOnWithItsEnd(t *testing.T) {
	for text, want := range map[string][]byte{"": putUint32(nil, 0), "a": putOpaque(nil, "a\x00")} {
		if got := putCookie(nil, text); !bytes.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	for raw, want := range map[string]string{"": "", "\x00": "", "a\x00": "a", "a": "a", "a\x00\x00": "a\x00"} {
		d := decoder{rest: putOpaque(nil, raw)}
		if got := d.cookie(); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

func TestTextOfTheSourceIsPrintableAndShort(t *testing.T) {
	for text, want := range map[string]string{
		"a ~": `"a ~"`, "a\nb\x7f\"": `"a?b??"`, "\x1b[2J": `"?[2J"`, strings.Repeat("a", 60): `"` + strings.Repeat("a", 60) + `"`,
		strings.Repeat("a", 61): `"` + strings.Repeat("a", 60) + `..."`,
	} {
		if got := quoted(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

package migrate

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestATemplateIsOfAURIWithItsHostLeftOut(t *testing.T) {
	for text, want := range map[string]string{ // "": valid
		"qemu+tls://{{address}}/system":                           "",
		"qemu+tls://{{address}}:16514/system":                     "",
		"qemu+tls://{{address}}/system?pkipath=/etc/pki/vmgrace":  "",
		"qemu+tcp://{{address}}/system":                           "",
		"qemu+ssh://root@{{address}}/system?no_tty=1":             "",
		"qemu+tls://node-b/system":                                "must have {{address}} once",
		"qemu+tls://{{address}}/{{address}}":                      "must have {{address}} once",
		"qemu+tls://node-b/system?pkipath=/{{address}}":           "must have {{address}} once",
		"qemu+tls://{{address}}@node-b/system":                    "must have {{address}} once",
		"qemu+tls://{{address}}.example.org/system":               "must have {{address}} once",
		"qemu+tls://x{{address}}/system":                          "must have {{address}} once",
		"{{address}}":                                             "must have {{address}} once",
		"qemu://{{address}}/system":                               "must begin with one of",
		"QEMU+TLS://{{address}}/system":                           "must begin with one of",
		"test+tls://{{address}}/system":                           "must begin with one of",
		"qemu+ext://{{address}}/system?command=/bin/sh":           "must begin with one of",
		"qemu+unix://{{address}}/system?socket=/run/libvirt-sock": "must begin with one of",
		"qemu+tls://{{address}}/session":                          "must be of a /system",
		"qemu+tls://{{address}}":                                  "must be of a /system",
		"qemu+tls://{{address}}/system#x":                         "must be of a /system",
		"qemu+tls://{{address}}:port/system":                      "no URI: ",
		"qemu+tls://{{address}}/system\n":                         "no URI: ",
		"qemu+tls://{{address}}/%zz":                              "no URI: ",
	} {
		is, err := ParseURITemplate(text)
		switch {
		case want == "" && (err != nil || !is.Native()):
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || is.Native()):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if is, err := ParseURITemplate(""); err != nil || is.Native() {
		t.Errorf("no template: %+v, %v", is, err)
	}
}

func TestTheAddressIsTheHost(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.2:9470":                   "192.0.2.2",
		"[2001:db8::2]:9470":               "[2001:db8::2]",
		"[2001:DB8:0::2]:9470":             "[2001:db8::2]",
		"[::ffff:192.0.2.2]:9470":          "[::ffff:192.0.2.2]",
		"node-b.example.org:9470":          "node-b.example.org",
		"node_b:9470":                      "node_b",
		"":                                 "",
		":9470":                            "",
		"node-b":                           "",
		"2001:db8::2:9470":                 "",
		"[fe80::1%eth0]:9470":              "",
		"[fe80::1%25/x]:9470":              "",
		"0.0.0.0:9470":                     "",
		"[::]:9470":                        "",
		"[node-b/session?x=]:9470":         "",
		"node-b/session?command=:947":      "",
		"root@node-b:9470":                 "",
		"node-b?socket=/x:9470":            "",
		"node-b#:9470":                     "",
		"node-b%2fx:9470":                  "",
		"node-b\n:9470":                    "",
		"node b:9470":                      "",
		"-node:9470":                       "",
		"node..b:9470":                     "",
		"knödel:9470":                      "",
		strings.Repeat("n", 254) + ":9470": "",
	} {
		for before, after := range map[string]string{"qemu+tls://": "/system", "qemu+ssh://root@": ":22/system?no_tty=1"} {
			template, err := ParseURITemplate(before + addressMark + after)
			if err != nil {
				t.Fatal(err)
			}
			uri, err := template.at(address)
			if want == "" && (err == nil || uri != "" || strings.Contains(err.Error(), "\n")) || want != "" && uri != before+want+after {
				t.Errorf("%q: %q, %v, want %q", address, uri, err, want)
			}
		}
	}
}

// Whatever address another node's agent publishes, it sets only the URI's host.
func FuzzTheAddressSaysTheHostAlone(f *testing.F) {
	for _, address := range []string{"192.0.2.2:1", "[2001:db8::2]:1", "node-b:1", "a@b:1", "a/b:1", "a?b:1", "[::1%25a]:1", "a:1/system?x=:2"} {
		f.Add(address)
	}
	template, err := ParseURITemplate("qemu+ssh://root@{{address}}:22/system?no_tty=1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, address string) {
		uri, err := template.at(address)
		if err != nil {
			return
		}
		u, err := url.Parse(uri)
		if err != nil || u.Scheme != "qemu+ssh" || u.User.String() != "root" || u.Port() != "22" || u.Path != "/system" || u.RawQuery != "no_tty=1" || u.Fragment != "" {
			t.Errorf("%q makes %q: %+v, %v", address, uri, u, err)
		}
		host, _, _ := net.SplitHostPort(address)
		ip, notIP := netip.ParseAddr(host)
		if u.Hostname() != host && (notIP != nil || u.Hostname() != ip.String()) {
			t.Errorf("%q makes host %q", address, u.Hostname())
		}
	})
}

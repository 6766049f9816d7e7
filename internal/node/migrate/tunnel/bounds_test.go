package tunnel

import (
	"fmt"
	"strings"
	"testing"
)

// A domain passes with as many devices as a bound allows, not with more.
func TestWhatADomainHasManyOfIsBounded(t *testing.T) {
	many := func(before, one string, n int) string { return instead(t, before, strings.Repeat(one, n)+before) }
	for what, c := range map[string]struct {
		most int
		text func(n int) string
	}{
		"I/O threads": {maxIOThreads, func(n int) string {
			return instead(t, "<iothreads>2</iothreads>", "<iothreadids>"+strings.Repeat("<iothread id='1'/>", n)+"</iothreadids>")
		}},
		"interfaces": {maxInterfaces - 1, func(n int) string {
			return many("<memballoon", "<interface type='network'><source network='onbr'/></interface>", n)
		}},
		"displays": {maxVideos - 1, func(n int) string { return many("<memballoon", "<video/>", n) }},
		"controllers": {maxControllers - 1, func(n int) string {
			return instead(t, "<controller type='scsi' index='0'", fmt.Sprintf("<controller type='scsi' index='%d'", n))
		}},
		"PCI controllers": {255, func(n int) string {
			return instead(t, "<controller type='pci' index='11'", fmt.Sprintf("<controller type='pci' index='%d'", n))
		}},
		"memory of cells": {131072, func(n int) string {
			return instead(t, "<model fallback='forbid'>qemu64</model>", fmt.Sprintf("<numa><cell id='0' memory='65536'/><cell id='1' memory='%d'/></numa>", n-65536))
		}},
		"a path": {maxTextValue, func(n int) string {
			return instead(t, "/var/lib/libvirt/images/raw.img", "/var/lib/libvirt/images/"+strings.Repeat("x", n-len("/var/lib/libvirt/images/")))
		}},
	} {
		a := shipped()
		if _, err := a.domain(c.text(c.most)); err != nil {
			t.Errorf("%s, %d: %v", what, c.most, err)
		}
		if _, err := a.domain(c.text(c.most + 1)); !isRefusal(err) {
			t.Errorf("%s, %d: %v", what, c.most+1, err)
		}
	}
	root, err := parse(q35(t), ReasonDomain)
	if err != nil {
		t.Fatal(err)
	}
	c := checker{agreed: &Agreement{}, reason: ReasonDomain}
	list := &node{name: "devices", children: root.devices()}
	for len(list.children) < maxDevices {
		list.children = append(list.children, &node{name: "hub"})
	}
	if err := c.count(list); err != nil {
		t.Error(err)
	}
	list.children = append(list.children, &node{name: "hub"})
	if err := c.count(list); !isRefusal(err) {
		t.Errorf("%d devices: %v", maxDevices+1, err)
	}
}

func TestMemoryAndProcessorsAreBoundedByTheAgreement(t *testing.T) {
	for what, c := range map[string]struct {
		a            Agreement
		memory, cpus int64
	}{
		"nothing agreed":  {Agreement{}, maxMemory, maxCPUs},
		"agreed":          {Agreement{Memory: 1 << 20, CPUs: 2}, 1024, 2},
		"less than none":  {Agreement{CPUs: -1}, maxMemory, maxCPUs},
		"more than all":   {Agreement{Memory: 1 << 60, CPUs: maxCPUs + 1}, maxMemory, maxCPUs},
		"less than 1 KiB": {Agreement{Memory: 1023}, 0, maxCPUs},
	} {
		if m, n := c.a.memory(), c.a.cpus(); m != c.memory || n != c.cpus {
			t.Errorf("%s: %d KiB, %d CPUs", what, m, n)
		}
	}
	// The error states the bound.
	a := shipped()
	for _, text := range []string{instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>131073<"), instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static'>5<")} {
		if _, err := a.domain(text); err == nil || !strings.Contains(err.Error(), "131072 KiB, 4 CPUs") {
			t.Error(err)
		}
	}
}

func TestANumberIsReadAsLibvirtReadsIt(t *testing.T) {
	for kind, values := range map[string]map[string]bool{
		"0..31":                 {"0": true, "31": true, "32": false, "-1": false, "0x1f": true, "0x20": false, "00": false, "010": false, "+1": false, "": false, "1 ": false, " 1": false, "1e1": false, "1_0": false, "0b1": false, "0o7": false, "0x": false, "0x00000001": true, "0x000000001": false, "-0": true},
		"-1|5900..65535":        {"-1": true, "5900": true, "65535": true, "65536": false, "0": false, "-2": false, "22": false},
		"reset|-9..9":           {"reset": true, "-9": true, "-10": false, "9": true, "10": false},
		"on|off":                {"on": true, "off": true, "": false, "on|off": false, "o": false},
		"0..x":                  {"0": false, "0..x": false},
		"x..9":                  {"0": false},
		"1..999999999999999999": {"999999999999999999": true, "9999999999999999999": false},
	} {
		for v, want := range values {
			if got := oneOf(kind, v); got != want {
				t.Errorf("%q as %s: %t", v, kind, got)
			}
		}
	}
}

// Each kind in the schema is a known one: a misspelt kind would be an enumeration that allows
// its own name.
func TestEachKindOfTheSchemaIsKnown(t *testing.T) {
	kinds := map[string]bool{}
	var walk func(s *schema, seen map[*schema]bool)
	walk = func(s *schema, seen map[*schema]bool) {
		if seen[s] {
			return
		}
		seen[s] = true
		kinds[s.text] = true
		for _, kind := range s.attrs {
			kinds[kind] = true
		}
		for _, child := range s.children {
			walk(child, seen)
		}
	}
	walk(newDomainSchema(), map[*schema]bool{})
	walk(newCookieSchema(), map[*schema]bool{})
	single := map[string]bool{
		"": true, "free": true, "name": true, "agreed-uuid": true, "any": true, "listen": true, "cpuset": true, "nodeset": true, "spicevmc": true, "passthrough": true, "openvswitch": true, "no": true, "emulator": true, "network": true, "memory": true, "cpus": true,
		"yes": true, "hvm": true, "/machine": true, "utc": true, "smbios": true, "qemu": true, "bind": true, "virtio": true, "usb": true, "none": true, "static": true, "custom": true,
		"KiB": true, "lockstate": true, "dynamic": true,
	}
	for kind := range kinds {
		p, _ := pattern(kind)
		if p == nil && !isPath(kind) && !single[kind] && !strings.Contains(kind, "|") && !strings.Contains(kind, "..") {
			t.Errorf("kind %q", kind)
		}
	}
}

package libvirt

import (
	"strings"
	"testing"
)

func inDomain(xml string) string {
	return "<domstatus state='running' pid='42'><domain type='qemu' id='7'><name>ns_vm</name><uuid>" + uuidA + "</uuid>" + xml + "</domain></domstatus>"
}

func TestTheGracePeriodIsFoundHoweverItIsWritten(t *testing.T) {
	const kv = `xmlns:kubevirt='http://kubevirt.io'`
	for name, c := range map[string]struct{ xml, want string }{
		"as KubeVirt does":       {`<metadata><kubevirt:kubevirt ` + kv + `><kubevirt:graceperiod><kubevirt:deletionGracePeriodSeconds>33</kubevirt:deletionGracePeriodSeconds></kubevirt:graceperiod></kubevirt:kubevirt></metadata>`, "33"},
		"child without a prefix": {`<metadata><kubevirt:kubevirt ` + kv + `><kubevirt:graceperiod><deletionGracePeriodSeconds>33</deletionGracePeriodSeconds></kubevirt:graceperiod></kubevirt:kubevirt></metadata>`, "33"},
		"default namespace":      {`<metadata><kubevirt xmlns='http://kubevirt.io'><graceperiod><deletionGracePeriodSeconds>33</deletionGracePeriodSeconds></graceperiod></kubevirt></metadata>`, "33"},
		"no wrapper":             {`<metadata><k:graceperiod xmlns:k='http://kubevirt.io'><k:deletionGracePeriodSeconds>33</k:deletionGracePeriodSeconds></k:graceperiod></metadata>`, "33"},
		"space around it":        {"<metadata><graceperiod xmlns='http://kubevirt.io'><deletionGracePeriodSeconds>\n  33\n</deletionGracePeriodSeconds></graceperiod></metadata>", "33"},
		"nonsense is handed on":  {`<metadata><graceperiod xmlns='http://kubevirt.io'><deletionGracePeriodSeconds>-1</deletionGracePeriodSeconds></graceperiod></metadata>`, "-1"},
		"none":                   {`<metadata><graceperiod xmlns='http://kubevirt.io'/></metadata>`, ""},
		"another namespace":      {`<metadata><graceperiod xmlns='http://example.com'><deletionGracePeriodSeconds>0</deletionGracePeriodSeconds></graceperiod></metadata>`, ""},
		"outside of metadata":    {`<devices><graceperiod xmlns='http://kubevirt.io'><deletionGracePeriodSeconds>0</deletionGracePeriodSeconds></graceperiod></devices>`, ""},
		"in a comment":           {`<metadata><!-- <graceperiod xmlns='http://kubevirt.io'><deletionGracePeriodSeconds>0</deletionGracePeriodSeconds></graceperiod> --></metadata>`, ""},
	} {
		s, err := parseStatus(strings.NewReader(inDomain(c.xml)))
		if err != nil || s.grace != c.want || s.name != "ns_vm" || s.uuid != uuidA || s.pid != 42 {
			t.Errorf("%s: got %+v, %v, want %q", name, s, err, c.want)
		}
	}
}

func TestAnAgentIsThereWhenItsChannelIsOpen(t *testing.T) {
	channel := func(name, state string) string {
		return "<channel type='unix'><source mode='bind' path='/x'/><target type='virtio' name='" + name + "' state='" + state + "'/></channel>"
	}
	for _, c := range []struct {
		xml  string
		want bool
	}{
		{channel(agentChannel, "connected"), true},
		{channel(agentChannel, "disconnected"), false},
		{channel("com.redhat.spice.0", "connected"), false},
		{channel(agentChannel, "connected") + channel("com.redhat.spice.0", "disconnected"), true},
		{"", false},
	} {
		s, err := parseStatus(strings.NewReader(inDomain("<devices>" + c.xml + "</devices>")))
		if err != nil || s.agent != c.want {
			t.Errorf("%s: %+v, %v", c.xml, s, err)
		}
	}
}

func TestNestedNamesAreNotTheDomains(t *testing.T) {
	s, err := parseStatus(strings.NewReader(inDomain("<metadata><x:domain xmlns:x='http://example.com'><name>evil</name><uuid>evil</uuid></x:domain></metadata>")))
	if err != nil || s.name != "ns_vm" || s.uuid != uuidA {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add(inDomain("<metadata><graceperiod xmlns='http://kubevirt.io'><deletionGracePeriodSeconds>3</deletionGracePeriodSeconds></graceperiod></metadata>"))
	f.Add("<domain><name>a</name><uuid>b</uuid></domain>")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseStatus(strings.NewReader(text))
		if err == nil && (s.name == "" || s.uuid == "" || s.pid < 0) {
			t.Errorf("accepted as %+v", s)
		}
	})
}

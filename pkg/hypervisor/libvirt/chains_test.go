package libvirt

import (
	"strings"
	"testing"
)

func TestWhatIsSentHasTheChainsOfTheDomain(t *testing.T) {
	const chain = `<backingStore type='file'><format type='qcow2'/><source file='/b'/><backingStore type='file'><format type='raw'/><source file='/c'/><backingStore/></backingStore></backingStore>`
	sent := `<domain><devices><disk><source file='/a'/><target dev='vda'/></disk><disk><source file='/x'/><backingStore/><target dev='vdb'/></disk>` +
		`<disk><target dev='sda'/></disk><disk><source file='/y'></source><target dev='vdc'/></disk></devices></domain>`
	live := `<domain><devices><disk><source file='/y' index='4'/><backingStore/><target dev='vdc'/></disk><disk><source file='/a' index='1'/>` +
		strings.ReplaceAll(strings.ReplaceAll(chain, `<backingStore type='file'>`, `<backingStore type='file' index='7'>`), "/c'/>", `/c' index="8"/>`) +
		`<target dev='vda'/></disk><disk><source file='/x'/><backingStore type='file'/><target dev='vdb'/></disk><disk><backingStore/><target dev='sda'/></disk></devices></domain>`
	want := `<domain><devices><disk><source file='/a'/>` + chain + `<target dev='vda'/></disk><disk><source file='/x'/><backingStore/><target dev='vdb'/></disk>` +
		`<disk><target dev='sda'/></disk><disk><source file='/y'></source><backingStore/><target dev='vdc'/></disk></devices></domain>`
	if got, err := withChains(sent, live); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if got, err := withChains(want, live); err != nil || got != want {
		t.Errorf("with all chains: %s, %v", got, err)
	}
	for _, bad := range []string{"<domain", "</domain>", "<a>&x</a>"} {
		if _, err := withChains(bad, live); err == nil || !strings.Contains(err.Error(), "that a migration sends") {
			t.Errorf("%s is sent: %v", bad, err)
		}
		if _, err := withChains(sent, bad); err == nil || !strings.Contains(err.Error(), "of the domain") {
			t.Errorf("%s is read: %v", bad, err)
		}
	}
}

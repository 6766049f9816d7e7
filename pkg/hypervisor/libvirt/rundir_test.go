package libvirt

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// testTimeout is how long anything without a promise may take.
const testTimeout = 60 * time.Second

// qemu starts a process with the arguments that identify a QEMU.
func qemu(t *testing.T, name, uuid string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read -r _", "-S", "-name", "guest="+name+",debug-threads=on", "-uuid", uuid, "-display", "none")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	// The kernel lets Start return before it has set up the arguments.
	node.Eventually(t, testTimeout, func() bool {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		return err == nil && len(args) > 0
	}, "process %d has its arguments", cmd.Process.Pid)
	return cmd
}

func statusXML(name, uuid string, pid int) string {
	return fmt.Sprintf(`<!--
WARNING: THIS IS AN AUTO-GENERATED FILE.
-->
<domstatus state='running' reason='booted' pid='%d'>
  <monitor path='/var/lib/libvirt/qemu/domain-1-x/monitor.sock' type='unix'/>
  <domain type='qemu' id='1'>
    <name>%s</name>
    <uuid>%s</uuid>
  </domain>
</domstatus>
`, pid, name, uuid)
}

func TestAnEntryIsTheProcessThatLibvirtNames(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	pid := qemu(t, "ns_vm", uuidA).Process.Pid
	start, err := process.Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	kit.Write(t, dir+"/ns_vm.xml", statusXML("ns_vm", uuidA, pid))
	for range 2 { // the second time from the cache
		e, err := r.look("ns_vm")
		if want := (grace.Instance{UUID: uuidA, PID: pid, Start: start}); err != nil || e.instance() != want || !e.live() || e.gone {
			t.Errorf("got %+v, %v, want %+v", e, err, want)
		}
	}
	names, err := r.names()
	if err != nil || len(names) != 1 || names[0] != "ns_vm" {
		t.Errorf("names: %q, %v", names, err)
	}
}

func TestAProcessThatIsNotThisQEMUIsNotIdentified(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	for name, pid := range map[string]int{
		"of another name":          qemu(t, "ns_vm-2", uuidA).Process.Pid,
		"of a longer name":         qemu(t, "ns_vm", uuidA).Process.Pid,
		"of another UUID":          qemu(t, "ns_other", uuidB).Process.Pid,
		"something else":           os.Getpid(),
		"no process of user space": 2,
	} {
		domain := map[string]string{"of a longer name": "ns_v", "of another UUID": "ns_other"}[name]
		if domain == "" {
			domain = "ns_vm"
		}
		kit.Write(t, dir+"/"+domain+".xml", statusXML(domain, uuidA, pid))
		e, err := r.look(domain)
		if want := (grace.Instance{UUID: uuidA}); err != nil || e.instance() != want || e.live() || e.gone {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
	}
}

func TestADeadProcessIsGoneThoughItsFileStays(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	seen := qemu(t, "ns_seen", uuidA)
	unseen := qemu(t, "ns_unseen", uuidB)
	kit.Write(t, dir+"/ns_seen.xml", statusXML("ns_seen", uuidA, seen.Process.Pid))
	kit.Write(t, dir+"/ns_unseen.xml", statusXML("ns_unseen", uuidB, unseen.Process.Pid))
	if e, err := r.look("ns_seen"); err != nil || !e.live() {
		t.Fatalf("%+v, %v", e, err)
	}
	for name, cmd := range map[string]*exec.Cmd{"ns_seen": seen, "ns_unseen": unseen} {
		p, err := process.Watch(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.Done() // a zombie now
		_ = p.Close()
		e, err := r.look(name)
		if err != nil || !e.gone || e.live() || e.instance().PID != 0 {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

func TestAnotherStatusWithTheSameNameIsRead(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	for _, uuid := range []string{uuidA, uuidB} {
		pid := qemu(t, "ns_vm", uuid).Process.Pid
		kit.Write(t, dir+"/ns_vm.xml.new", statusXML("ns_vm", uuid, pid))
		if err := os.Rename(dir+"/ns_vm.xml.new", dir+"/ns_vm.xml"); err != nil {
			t.Fatal(err)
		}
		if e, err := r.look("ns_vm"); err != nil || e.uuid != uuid || e.instance().PID != pid {
			t.Errorf("got %+v, %v, want %s with %d", e, err, uuid, pid)
		}
	}
}

func TestAListOfManyDomainsParsesNothingTwice(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	pid := qemu(t, "ns_vm", uuidA).Process.Pid
	kit.Write(t, dir+"/ns_vm.xml", statusXML("ns_vm", uuidA, pid))
	if _, err := r.look("ns_vm"); err != nil {
		t.Fatal(err)
	}
	// The same inode, size and time, but nothing that could be parsed.
	info, err := os.Stat(dir + "/ns_vm.xml")
	if err != nil {
		t.Fatal(err)
	}
	kit.Write(t, dir+"/ns_vm.xml", strings.Repeat("x", int(info.Size())))
	if err := os.Chtimes(dir+"/ns_vm.xml", time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if e, err := r.look("ns_vm"); err != nil || !e.live() {
		t.Errorf("%+v, %v", e, err)
	}
	if err := os.Remove(dir + "/ns_vm.xml"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.names(); err != nil || len(r.cache) != 0 {
		t.Errorf("%v; the cache keeps %d that have no file", err, len(r.cache))
	}
}

func TestNamesAreForgottenOneByOne(t *testing.T) {
	dir := t.TempDir()
	r := newRunDir(dir)
	for _, name := range []string{"a", "a-b", "a.b"} {
		pid := qemu(t, name, uuidA).Process.Pid
		kit.Write(t, dir+"/"+name+".xml", statusXML(name, uuidA, pid))
		if _, err := r.look(name); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := r.names(); err != nil || len(names) != 3 || len(r.cache) != 3 {
		t.Errorf("%q, %v, %d in the cache", names, err, len(r.cache))
	}
}

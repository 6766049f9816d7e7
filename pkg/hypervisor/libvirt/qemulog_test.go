package libvirt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

const (
	uuidA = "aaaaaaaa-0000-4000-8000-000000000001"
	uuidB = "bbbbbbbb-0000-4000-8000-000000000002"
)

func start(clock, uuid string) string {
	return fmt.Sprintf("2026-11-20 %s.100+0000: starting up libvirt version: 9.0.0, hostname: n\nLC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n"+
		"-name guest=ns_vm,debug-threads=on \\\n-uuid %s \\\n-msg timestamp=on\n", clock, uuid)
}

func signalled(by string) string {
	return "2026-11-20T10:51:07.388197Z qemu-system-x86_64: terminating on signal 15 from pid 4711 (" + by + ")\n"
}

func down(reason string) string {
	return "2026-11-20 10:51:08.992+0000: shutting down, reason=" + reason + "\n"
}

func TestTheLogSaysWhyAnInstanceEnded(t *testing.T) {
	at := func(clock string) time.Time {
		when, err := time.Parse(time.TimeOnly, clock)
		if err != nil {
			t.Fatal(err)
		}
		return when.AddDate(2026, 10, 19)
	}
	a := start("10:00:00", uuidA)
	for _, c := range []struct {
		name, tail string
		started    time.Time
		want       grace.End
	}{
		{"empty", "", time.Time{}, grace.EndUnknown},
		{"it runs", a, time.Time{}, grace.EndUnknown},
		{"guest off", a + signalled("libvirtd") + down("shutdown"), time.Time{}, grace.EndGuest},
		{"guest off, modular daemon, by path", a + signalled("/usr/sbin/virtqemud") + down("shutdown"), time.Time{}, grace.EndGuest},
		{"libvirt has signalled, but not said why", a + signalled("libvirtd"), time.Time{}, grace.EndUnknown},
		{"a kill that libvirt takes for a shutdown", a + signalled("bash") + down("shutdown"), time.Time{}, grace.EndDestroyed},
		{"a kill that libvirt takes for a crash", a + signalled("/usr/bin/killall") + down("crashed"), time.Time{}, grace.EndDestroyed},
		{"an agent's signal, whatever libvirt takes it for", a + signalled("/usr/bin/node-agent") + down("crashed"), time.Time{}, grace.EndKilled},
		{"a sender that died before QEMU looked", a + signalled("") + down("shutdown"), time.Time{}, grace.EndKilled},
		{"a sender that died, in QEMU's words", a + signalled("<unknown process>") + down("shutdown"), time.Time{}, grace.EndKilled},
		{"a kill, and libvirtd is dead", a + signalled("bash"), time.Time{}, grace.EndDestroyed},
		{"a killer with brackets", a + signalled("a) (libvirtd") + down("shutdown"), time.Time{}, grace.EndDestroyed},
		{"destroyed", a + signalled("libvirtd") + down("destroyed"), time.Time{}, grace.EndDestroyed},
		{"migrated, and libvirtd was killed before it had done with it", a + down("migrated") + signalled("libvirtd") + down("failed"), time.Time{}, grace.EndMoved},
		{"crashed", a + down("crashed"), time.Time{}, grace.EndCrashed},
		{"failed", a + down("failed"), time.Time{}, grace.EndFailed},
		{"migrated", a + signalled("libvirtd") + down("migrated"), time.Time{}, grace.EndMoved},
		{"saved", a + down("saved"), time.Time{}, grace.EndSaved},
		{"a reason of later versions", a + down("daemon"), time.Time{}, grace.EndUnknown},
		{"no line break yet", a + "2026-11-20 10:51:08.992+0000: shutting down, reason=shut", time.Time{}, grace.EndUnknown},
		{"noise of QEMU", a + "x shutting down, reason=shutdown y\n", time.Time{}, grace.EndUnknown},
		{"the start was cut off", a[60:] + down("shutdown"), time.Time{}, grace.EndUnknown},
		{"another instance since", a + down("destroyed") + start("11:00:00", uuidB) + down("shutdown"), time.Time{}, grace.EndDestroyed},
		{"only another instance", start("11:00:00", uuidB) + down("shutdown"), time.Time{}, grace.EndUnknown},
		{"the same UUID, the first run", a + down("destroyed") + start("11:00:00", uuidA) + down("shutdown"), at("10:00:01"), grace.EndDestroyed},
		{"the same UUID, the second run", a + down("destroyed") + start("11:00:00", uuidA) + down("shutdown"), at("11:00:01"), grace.EndGuest},
		{"the same UUID, the second still runs", a + down("destroyed") + start("11:00:00", uuidA), at("11:00:01"), grace.EndUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := logEnd(c.tail, uuidA, c.started); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAnUUIDThatIsNotKnownMatchesNothing(t *testing.T) {
	if got := logEnd(start("10:00:00", "")+down("shutdown"), "", time.Time{}); got != grace.EndUnknown {
		t.Errorf("got %q", got)
	}
}

func TestOnlyTheTailOfALogIsRead(t *testing.T) {
	dir := t.TempDir()
	noise := strings.Repeat("noise of a guest's device\n", 1<<16)
	kit.Write(t, dir+"/ns_vm.log", noise+start("10:00:00", uuidA)+down("destroyed"))
	d := New(Config{URI: "test:///default", LogDir: dir})
	if end, err := d.endByLog("ns_vm", grace.Instance{UUID: uuidA}); err != nil || end != grace.EndDestroyed {
		t.Errorf("got %q, %v", end, err)
	}
	if tail, err := readTail(dir + "/ns_vm.log"); err != nil || len(tail) != maxTail {
		t.Errorf("read %d bytes, %v", len(tail), err)
	}
}

func FuzzLogEnd(f *testing.F) {
	f.Add(start("10:00:00", uuidA)+signalled("libvirtd")+down("shutdown"), uuidA)
	f.Fuzz(func(t *testing.T, tail, uuid string) {
		end := logEnd(tail, uuid, time.Time{})
		if end != grace.EndUnknown && !strings.Contains(tail, "-uuid "+uuid+" ") {
			t.Errorf("%q, but the log is not about that instance", end)
		}
	})
}

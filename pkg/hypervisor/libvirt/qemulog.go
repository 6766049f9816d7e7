package libvirt

import (
	"regexp"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// What libvirt (qemuDomainLogAppendMessage) and QEMU (qemu_kill_report) write:
//
//	2026-01-02 03:04:05.678+0000: starting up libvirt version: 9.0.0, ...
//	-uuid f3c4e1e3-... \
//	2026-01-02T03:04:05.678901Z qemu-system-x86_64: terminating on signal 15 from pid 42 (libvirtd)
//	2026-01-02 03:04:07.200+0000: shutting down, reason=shutdown
//
// A path may stand in the brackets instead of a name; of a sender that has
// died since there is nothing, or "<unknown process>".
var (
	starting    = regexp.MustCompile(`(?m)^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+0000): starting up `)
	ending      = regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+0000: shutting down, reason=([a-z-]+)$`)
	terminating = regexp.MustCompile(`(?m)^\S+ \S+: terminating on signal \d+(?: from pid \d+ (\(.*\)))?$`)
)

// agentName is the name of our program.
const agentName = "node-agent"

const logTime = "2006-01-02 15:04:05.000-0700"

// startedAt returns an instance's start by the wall clock, the zero time if its process
// is not known. It is wrong if the clock was set since.
func startedAt(i grace.Instance) time.Time {
	if i.PID == 0 {
		return time.Time{}
	}
	return time.Now().Add(-process.Age(i.Start))
}

// logEnd finds why an instance ended in the tail of its domain's log.
func logEnd(tail, uuid string, started time.Time) grace.End {
	run, ok := runOf(tail, uuid, started)
	if !ok {
		return grace.EndUnknown
	}
	reason := ""
	for _, m := range ending.FindAllStringSubmatch(run, -1) {
		// If a libvirtd was killed then, the next one writes another reason.
		if reason != "migrated" {
			reason = m[1]
		}
	}
	switch reason {
	case "destroyed":
		return grace.EndDestroyed
	case "migrated":
		return grace.EndMoved
	case "saved":
		return grace.EndSaved
	}
	// libvirt reports a SIGTERM from others as a shutdown, and with on_poweroff=restart
	// as a crash.
	if end := killedByOthers(run); end != grace.EndUnknown {
		return end
	}
	switch reason {
	case "shutdown":
		return grace.EndGuest
	case "crashed":
		return grace.EndCrashed
	case "failed":
		return grace.EndFailed
	default:
		return grace.EndUnknown
	}
}

// runOf returns the part of the log that belongs to the instance. Its UUID is in the
// command line. Of several runs with that UUID, runOf takes the one that began closest to
// the instance's process.
func runOf(tail, uuid string, started time.Time) (run string, ok bool) {
	begins := starting.FindAllStringSubmatchIndex(tail, -1)
	var best time.Duration
	for n, b := range begins {
		part := tail[b[0]:]
		if n+1 < len(begins) {
			part = tail[b[0]:begins[n+1][0]]
		}
		at, err := time.Parse(logTime, tail[b[2]:b[3]])
		if err != nil || uuid == "" || !strings.Contains(part, "\n-uuid "+uuid+" ") {
			continue
		}
		off := at.Sub(started).Abs()
		if started.IsZero() {
			off = 0 // the last one
		}
		if !ok || off <= best {
			run, ok, best = part, true, off
		}
	}
	return run, ok
}

// killedByOthers judges the end by the signal's sender, which QEMU names. It skips
// libvirtd, which signals every QEMU whose guest is off.
func killedByOthers(run string) grace.End {
	for _, m := range terminating.FindAllStringSubmatch(run, -1) {
		by := strings.Trim(m[1], "()")
		switch by[strings.LastIndexByte(by, '/')+1:] {
		case "libvirtd", "virtqemud":
		case agentName, "<unknown process>":
			return grace.EndKilled
		case "":
			if m[1] != "" {
				return grace.EndKilled
			}
		default:
			return grace.EndDestroyed
		}
	}
	return grace.EndUnknown
}

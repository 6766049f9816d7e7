package grace

import (
	"math"
	"strings"
	"time"
)

// Mono is CLOCK_MONOTONIC in nanoseconds (clock_gettime(2)): it survives
// agent restarts and clock steps, and means nothing in another boot.
type Mono int64

// Never is later than every other time.
const Never = Mono(math.MaxInt64)

// Add returns m+d, or Never where that would overflow.
func (m Mono) Add(d time.Duration) Mono {
	if d > 0 && m > Never-Mono(d) {
		return Never
	}
	return m + Mono(d)
}

// Sub returns the time from o to m.
func (m Mono) Sub(o Mono) time.Duration { return time.Duration(m - o) }

// Instance is one run of a domain: the domain's UUID and its QEMU process.
// A restarted domain is another instance. PID is 0 where the process could
// not be identified; Start is field 22 of /proc/pid/stat (proc(5)).
type Instance struct {
	UUID  string
	PID   int
	Start uint64
}

// Certain is the instance with its process only where that can be told from
// another one with the same pid: nothing else is ever signalled.
func (i Instance) certain() Instance {
	if i.PID == 0 || i.Start == 0 {
		i.PID, i.Start = 0, 0
	}
	return i
}

// tick is the unit of Instance.Start (proc(5), USER_HZ).
const tick = 10 * time.Millisecond

// startedBefore reports whether the process surely started before then. The
// start time counts a suspended node's time too, of which asleep was over by then.
func (i Instance) startedBefore(then Mono, asleep time.Duration) bool {
	return i.Start < uint64(then.Add(asleep))/uint64(tick)
}

// Period is a grace period with the place that stated it.
type Period struct {
	Length time.Duration
	Source Source
}

// Shutdown is a grace period that has begun. The wall clock times are for
// people; only the Mono ones count.
type Shutdown struct {
	Cause      Cause
	Start      Mono
	Deadline   Mono
	StartedAt  time.Time
	DeadlineAt time.Time
	// DryRun marks a shutdown that only a --dry-run agent follows.
	DryRun bool
	// Requested: at least one request was accepted.
	Requested bool
	// Signalled: the agent has signalled QEMU, or had libvirt destroy it.
	Signalled bool
	// Over: the VM had ended before QEMU was signalled; "" where it had not.
	Over Over
}

// Record is what the node remembers of one VM. It is a value: a copy shares
// nothing with the original.
type Record struct {
	Namespace string
	Name      string
	UID       string
	// VMICreated is the creation time of the VMI with this UID, as the API
	// server showed it; zero if it never did.
	VMICreated time.Time
	// Pod is the UID of the launcher pod, "" without Kubernetes. Holdable: its
	// shutdown may be held, when it was last shown. Moving: a migration of the VM away
	// from here was under way.
	Pod      string
	Holdable bool
	Moving   bool
	BootID   string
	Period   Period
	Instance Instance
	// Launcher is the shim that held vm.json's lock while this instance ran.
	Launcher Holder
	// Hold is zero unless the shutdown is held, or was before it began.
	Hold Hold
	// Shutdown is zero until a grace period begins.
	Shutdown Shutdown
}

// Holder is the process that holds, or held, the lock of a vm.json. Device,
// File (its inode) and Pod tell that vm.json from every other one.
type Holder struct {
	PID    int
	Start  uint64
	Device uint64 // 0 where an older agent wrote the record
	File   uint64
	Pod    string // the UID of the launcher pod; "" as Device is 0, and without Kubernetes
}

// sameFile reports whether o holds, or held, the vm.json that h does.
func (h Holder) sameFile(o Holder) bool {
	return h.File == o.File && (h.Pod == o.Pod || h.Pod == "") && (h.Device == o.Device || h.Device == 0)
}

// sameProcess reports whether o is the same shim, whatever file it has by now.
func (h Holder) sameProcess(o Holder) bool {
	return h.PID == o.PID && (h.Start == o.Start || h.Start == 0 || o.Start == 0)
}

// Domain is the libvirt name of the record's VM.
func (r *Record) Domain() string { return DomainName(r.Namespace, r.Name) }

// ShuttingDown reports whether a grace period has begun.
func (r *Record) ShuttingDown() bool { return r.Shutdown.Cause != "" }

// Phase follows from the record and the clock: nothing is written at the
// deadline.
func (r *Record) Phase(now Mono) Phase {
	switch {
	case !r.ShuttingDown() && r.Hold.UnderWay():
		return Held
	case !r.ShuttingDown():
		return Running
	case now < r.Shutdown.Deadline:
		return ShuttingDown
	default:
		return Destroying
	}
}

// identifiedBy reports whether an instance is the record's, whose process was not
// known: the UUID is the same, and the process was there when the shutdown
// began. In doubt it is another instance.
func (r *Record) identifiedBy(i Instance, asleep time.Duration) bool {
	return r.Instance.PID == 0 && i.PID != 0 && i.UUID == r.Instance.UUID && (!r.ShuttingDown() || i.startedBefore(r.Shutdown.Start, asleep))
}

// IsUID reports whether uid can be a Kubernetes object's: it becomes a part
// of paths and of file names. It has 1 to 64 letters, digits and '-'.
func IsUID(uid string) bool {
	invalid := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	}
	return uid != "" && len(uid) <= 64 && !strings.ContainsFunc(uid, invalid)
}

// DomainName is the libvirt name of a VMI's domain.
func DomainName(namespace, name string) string { return namespace + "_" + name }

// SplitDomainName is the inverse of DomainName; ok is false where the parts
// are not Kubernetes names (RFC 1123: lower case, digits, '-', and '.' in the
// name). A namespace has no '_', so the split is unambiguous.
func SplitDomainName(domain string) (namespace, name string, ok bool) {
	namespace, name, found := strings.Cut(domain, "_")
	if !found || !isDNS(namespace, 63, "-") || !isDNS(name, 253, "-.") {
		return "", "", false
	}
	return namespace, name, true
}

func isDNS(s string, most int, inside string) bool {
	if s == "" || len(s) > most {
		return false
	}
	alnum := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := range len(s) {
		if !alnum(s[i]) && strings.IndexByte(inside, s[i]) < 0 {
			return false
		}
	}
	return alnum(s[0]) && alnum(s[len(s)-1])
}

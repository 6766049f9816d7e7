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

// certain drops the process if its start time is unknown. Another process may have its
// pid by now, and must not be signalled.
func (i Instance) certain() Instance {
	if i.PID == 0 || i.Start == 0 {
		i.PID, i.Start = 0, 0
	}
	return i
}

// tick is the unit of Instance.Start (proc(5), USER_HZ).
const tick = 10 * time.Millisecond

// startedBefore reports whether the process surely started before then. The start time
// also counts suspended time; asleep is how much of that was over by then.
func (i Instance) startedBefore(then Mono, asleep time.Duration) bool {
	return i.Start < uint64(then.Add(asleep))/uint64(tick)
}

// Period is a grace period and its source.
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
	// Requested is set once a request was accepted.
	Requested bool
	// Signalled is set once the agent signalled QEMU, or had libvirt destroy it.
	Signalled bool
	// Over is the sign of an end seen before QEMU was signalled; "" if there was none.
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
	// Pod is the UID of the launcher pod, "" without Kubernetes. Holdable tells whether
	// its shutdown may be held, as last shown. Moving tells whether a migration of the VM
	// away from here was under way.
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

// Holder is the process that holds, or held, the lock of a vm.json. Device, File (its
// inode) and Pod identify that vm.json.
type Holder struct {
	PID    int
	Start  uint64
	Device uint64 // 0 where an older agent wrote the record
	File   uint64
	Pod    string // the UID of the launcher pod; "" where Device is 0, and without Kubernetes
}

// sameFile reports whether o holds, or held, the vm.json that h does.
func (h Holder) sameFile(o Holder) bool {
	return h.File == o.File && (h.Pod == o.Pod || h.Pod == "") && (h.Device == o.Device || h.Device == 0)
}

// sameProcess reports whether o is the same shim, whatever vm.json it holds now.
func (h Holder) sameProcess(o Holder) bool {
	return h.PID == o.PID && (h.Start == o.Start || h.Start == 0 || o.Start == 0)
}

// Domain is the libvirt name of the record's VM.
func (r *Record) Domain() string { return DomainName(r.Namespace, r.Name) }

// ShuttingDown reports whether a grace period has begun.
func (r *Record) ShuttingDown() bool { return r.Shutdown.Cause != "" }

// Phase derives the phase from the record and the clock, so nothing is written at the
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

// identifiedBy reports whether i is the record's instance, whose process was not known.
// The UUID must match, and the process must have started before the shutdown. In doubt i
// is another instance.
func (r *Record) identifiedBy(i Instance, asleep time.Duration) bool {
	return r.Instance.PID == 0 && i.PID != 0 && i.UUID == r.Instance.UUID && (!r.ShuttingDown() || i.startedBefore(r.Shutdown.Start, asleep))
}

// IsUID reports whether uid has 1 to 64 letters, digits and '-', as a Kubernetes object's
// UID has. Paths and file names contain it.
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

// begin starts the grace period. start is when the agent first saw the cause, wall the
// same moment on the wall clock. A launcher that died leaves no grace period, nor does a fenced node.
func (r *Record) begin(cause Cause, start Mono, wall time.Time, dry bool) {
	length := r.Period.Length
	if cause == LauncherDied || cause == NodeFenced {
		length = 0
	}
	wall = wall.UTC().Truncate(time.Millisecond)
	r.Shutdown = Shutdown{
		Cause: cause, Start: start, Deadline: start.Add(length),
		StartedAt: wall, DeadlineAt: wall.Add(length), DryRun: dry,
	}
}

// shorten moves the deadline forward to when, never back.
func (r *Record) shorten(when Mono) {
	s := &r.Shutdown
	if when >= s.Deadline {
		return
	}
	s.Deadline = when
	s.DeadlineAt = s.StartedAt.Add(when.Sub(s.Start)).Truncate(time.Millisecond)
}

// refresh copies identity, grace period and launcher from the observation.
func (r *Record) refresh(o *observation) {
	r.Period = o.Period
	r.UID, r.VMICreated = o.Owner.toRecord(r)
	if o.Pod.UID != "" {
		r.Pod = o.Pod.UID
	}
	r.Holdable, r.Moving = o.holdable(r), o.moving(r)
	r.Launcher = o.shimToRecord(r)
}

// shimToRecord returns the shim to record: the one that lives, or none after an orderly
// end. While its process is unknown, the recorded one stays.
func (o *observation) shimToRecord(r *Record) Holder {
	switch {
	case o.Shim == shimAlive && (o.Holder.PID != 0 || r.Launcher.PID == 0):
		return o.Holder
	case o.Shim == shimNone && o.Dir.Present:
		return Holder{}
	default:
		return r.Launcher
	}
}

package gracecache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// version is the newest format this agent reads, and the one it writes.
	version = 1
	// maxSize is the longest file that is read or written, in bytes.
	maxSize = 64 << 10
	// wallTime is RFC 3339 with milliseconds; all times are UTC.
	wallTime = "2006-01-02T15:04:05.000Z07:00"
)

// envelope is a whole file. Record stays raw, because the checksum covers its bytes in
// the file. So it covers unknown fields too.
type envelope struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Record   json.RawMessage `json:"record"`
}

// diskRecord is the written form of a grace.Record. Fields whose absence must not be read
// as 0 are pointers.
type diskRecord struct {
	Namespace   string        `json:"namespace"`
	Name        string        `json:"name"`
	UID         string        `json:"uid"`
	VMICreated  time.Time     `json:"vmiCreated,omitzero"`
	Pod         string        `json:"pod,omitempty"`
	Holdable    bool          `json:"holdable,omitempty"`
	Moving      bool          `json:"moving,omitempty"`
	BootID      string        `json:"bootID"`
	GracePeriod diskPeriod    `json:"gracePeriod"`
	Instance    diskInstance  `json:"instance"`
	Launcher    diskHolder    `json:"launcher,omitzero"`
	Hold        *diskHold     `json:"hold,omitempty"`
	Shutdown    *diskShutdown `json:"shutdown,omitempty"`
}

type diskPeriod struct {
	Length *string      `json:"length"`
	Source grace.Source `json:"source"`
}

type diskInstance struct {
	UUID  string `json:"uuid"`
	PID   int    `json:"pid"`
	Start uint64 `json:"startTicks"`
}

type diskHolder struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"startTicks"`
	Device uint64 `json:"device,omitempty"`
	File   uint64 `json:"file"`
	Pod    string `json:"pod,omitempty"`
}

type diskHold struct {
	Reason    grace.Cause `json:"reason,omitempty"`
	Start     *grace.Mono `json:"startMonotonicNanoseconds"`
	Until     *grace.Mono `json:"untilMonotonicNanoseconds"`
	StartedAt string      `json:"startedAt"`
	UntilAt   string      `json:"untilAt"`
	Leaving   bool        `json:"leaving"`
	Moving    bool        `json:"moving,omitempty"`
}

type diskShutdown struct {
	Cause      grace.Cause `json:"cause"`
	Start      *grace.Mono `json:"startMonotonicNanoseconds"`
	Deadline   *grace.Mono `json:"deadlineMonotonicNanoseconds"`
	StartedAt  string      `json:"startedAt"`
	DeadlineAt string      `json:"deadlineAt"`
	DryRun     bool        `json:"dryRun"`
	Requested  bool        `json:"requested"`
	Signalled  bool        `json:"signalled"`
	Over       grace.Over  `json:"over,omitempty"`
}

// encode returns the file of a record.
func encode(rec grace.Record) ([]byte, error) {
	if err := check(rec); err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(toDisk(rec), "  ", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	data := seal(raw)
	if len(data) > maxSize {
		return nil, fmt.Errorf("the record has %d bytes, more than %d", len(data), maxSize)
	}
	return data, nil
}

// seal puts a raw record into its envelope. json.Marshal would change the bytes that the
// checksum covers.
func seal(raw []byte) []byte {
	return fmt.Appendf(nil, "{\n  \"version\": %d,\n  \"checksum\": %q,\n  \"record\": %s\n}\n",
		version, checksum(raw), raw)
}

func checksum(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// decode reads a file. Unknown fields are a newer agent's and are ignored.
func decode(data []byte) (grace.Record, error) {
	var none grace.Record
	if len(data) > maxSize {
		return none, fmt.Errorf("more than %d bytes", maxSize)
	}
	if len(bytes.Trim(data, "\x00")) == 0 {
		return none, errors.New("empty, or nothing but zero bytes")
	}
	var env envelope
	err := json.Unmarshal(data, &env)
	// The version first: a newer format may be why the rest does not fit.
	if env.Version > version {
		return none, fmt.Errorf("written by a newer agent: version %d, this agent reads %d", env.Version, version)
	}
	if err != nil {
		return none, fmt.Errorf("torn or not a record: %w", err)
	}
	if env.Version < 1 {
		return none, fmt.Errorf("no such version: %d", env.Version)
	}
	if sum := checksum(env.Record); sum != env.Checksum {
		return none, fmt.Errorf("wrong checksum: the record has %s, the file says %.80q", sum, env.Checksum)
	}
	var d diskRecord
	if err := json.Unmarshal(env.Record, &d); err != nil {
		return none, fmt.Errorf("the record does not decode: %w", err)
	}
	rec, err := d.toRecord()
	if err != nil {
		return none, err
	}
	if err := check(rec); err != nil {
		return none, err
	}
	return rec, nil
}

// check refuses records that no agent may write or that are dangerous to read.
func check(rec grace.Record) error {
	if _, _, ok := grace.SplitDomainName(rec.Domain()); !ok {
		return fmt.Errorf("not a VM's name: %.80q, %.80q", rec.Namespace, rec.Name)
	}
	if p := rec.Period.Length; p < 0 || p > grace.MaxPeriod {
		return fmt.Errorf("grace period %s is not between 0 and %s", p, grace.MaxPeriod)
	}
	if rec.Instance.PID < 0 || rec.Launcher.PID < 0 {
		return errors.New("a process id is negative")
	}
	if !rec.ShuttingDown() && rec.Shutdown != (grace.Shutdown{}) {
		return errors.New("a shutdown without a cause")
	}
	if rec.Pod != "" && !grace.IsUID(rec.Pod) {
		return fmt.Errorf("not a pod's UID: %.80q", rec.Pod) // it becomes part of a path
	}
	for _, t := range []time.Time{rec.VMICreated, rec.Shutdown.StartedAt, rec.Shutdown.DeadlineAt, rec.Hold.StartedAt, rec.Hold.UntilAt} {
		if y := t.UTC().Year(); y < 0 || y > 9999 {
			return fmt.Errorf("year %d has no RFC 3339 form", y)
		}
	}
	return nil
}

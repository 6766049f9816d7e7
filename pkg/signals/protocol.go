package signals

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The files of a launcher directory.
const (
	FileVM      = "vm.json"
	FileTrigger = "shutdown"
	FileStatus  = "status.json"
	// FileTakenTrigger is a trigger that the agent is about to remove, or was when it
	// died.
	FileTakenTrigger = ".shutdown.agent"
	// FileHeld and FileAnswered are the agent's word for a launcher that is no shim: a preStop
	// hook. It waits for FileAnswered, and then while FileHeld is there. It makes FileAnswered
	// itself when no agent does.
	FileHeld     = "held"
	FileAnswered = "answered"
)

// MaxSize is how many bytes of a file are read; a longer one is invalid.
const MaxSize = 64 << 10

// maxGraceText bounds what an invalid grace period adds to a log line.
const maxGraceText = 64

// Errors of the parsers.
var (
	ErrTooLarge = fmt.Errorf("larger than %d bytes", MaxSize)
	ErrFormat   = errors.New("not a JSON object of the launcher protocol")
	ErrUID      = errors.New("a uid is 1 to 128 of letters, digits, '-', '_', '.' and ':' only")
)

// VM is vm.json: the shim's statement of what it launches.
type VM struct {
	Namespace, Name, UID string
	// Grace is the JSON text of gracePeriodSeconds, "" where it is absent or
	// null. It may be anything; grace.ParseSeconds judges it.
	Grace string
	Asking
}

// Asking is the rest of vm.json if the shim asks the guest itself, zero otherwise.
type Asking struct {
	// Asks is AsksLauncher. PID is the VM process as its container sees it, 0 while it is
	// not known.
	Asks string `json:"asks,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Requested is the last request of status.json that was carried out. Result is its
	// result: ResultOK, or an error for people.
	Requested uint64 `json:"requested,omitempty"`
	Result    string `json:"result,omitempty"`
	// Agent means that it can ask the guest's agent, too.
	Agent bool `json:"agent,omitempty"`
	// Guest is GuestOff or GuestPanicked once the guest is so and the VM process stays.
	Guest string `json:"guest,omitempty"`
	// Migration is about the guest's migration.
	Migration Moving `json:"migration,omitzero"`
}

// Values in vm.json of a launcher that asks its guest itself.
const (
	AsksLauncher = "launcher"
	ResultOK     = "ok"
	// ResultBusy begins the result if another program holds QEMU's monitor.
	ResultBusy = "monitor busy"
	// ResultRefused begins the result if the guest's agent has refused; its words follow.
	ResultRefused = "refused by the guest: "
	GuestOff      = "off"
	GuestPanicked = "panicked"
)

// maxResult bounds the text of a result.
const maxResult = 200

type vmFile struct {
	Version   int             `json:"version"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Grace     json.RawMessage `json:"gracePeriodSeconds,omitempty"`
}

// ParseVM reads vm.json. A bad grace period, pid, request or result never spoils the
// rest. An absent namespace, name or uid is "", for the caller to judge. Errors wrap
// ErrTooLarge, ErrFormat or ErrUID.
func ParseVM(content []byte) (VM, error) {
	var f vmFile
	if err := parse(content, &f, &f.Version); err != nil {
		return VM{}, fmt.Errorf("%s: %w", FileVM, err)
	}
	if f.UID != "" && !ValidUID(f.UID) {
		return VM{}, fmt.Errorf("%s: %w", FileVM, ErrUID)
	}
	vm := VM{Namespace: f.Namespace, Name: f.Name, UID: f.UID, Grace: graceText(f.Grace)}
	_ = json.Unmarshal(content, &vm.Asking) // skips values of another type, and reads on
	if vm.Asks != AsksLauncher {
		vm.Asking = Asking{}
	}
	if vm.PID < 0 || vm.PID > math.MaxInt32 {
		vm.PID = 0
	}
	vm.Result = resultText(vm.Result)
	vm.Migration = vm.Migration.clean()
	if vm.Guest != GuestOff && vm.Guest != GuestPanicked {
		vm.Guest = ""
	}
	return vm, nil
}

// resultText returns one short line of printable ASCII.
func resultText(text string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return clean[:min(len(clean), maxResult)]
}

// graceText keeps a number of any length whole, and shortens other text.
func graceText(raw json.RawMessage) string {
	text := string(raw)
	if text == "null" {
		return ""
	}
	_, err := grace.ParseSeconds(text)
	if len(text) > maxGraceText && err != nil && !errors.Is(err, grace.ErrTooLong) {
		return strings.ToValidUTF8(text[:maxGraceText], "") + "…"
	}
	return text
}

// Trigger is the shim's form of the shutdown file.
type Trigger struct {
	UID, Signal string
	// Time is for people. The grace period starts when the agent sees the file.
	Time time.Time
}

// TriggerUID returns the uid that a shutdown file names. It is "" if the file is not an
// object with a version from 1 up and a uid. Such a file names no VM, and triggers
// whichever is there.
func TriggerUID(content []byte) string {
	var f struct { // its other members may be anything
		Version int    `json:"version"`
		UID     string `json:"uid"`
	}
	if parse(content, &f, &f.Version) != nil {
		return ""
	}
	return f.UID
}

// ValidUID reports whether uid can stand in the files. Kubernetes uses UUIDs,
// but promises only a string.
func ValidUID(uid string) bool {
	for _, c := range []byte(uid) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > ':') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return uid != "" && len(uid) <= 128
}

// parse accepts any version from 1 up and reads the fields known here, so that old and
// new ends understand each other.
func parse(content []byte, into any, version *int) error {
	if len(content) > MaxSize {
		return ErrTooLarge
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if *version < 1 {
		return fmt.Errorf("%w: version %d", ErrFormat, *version)
	}
	return nil
}

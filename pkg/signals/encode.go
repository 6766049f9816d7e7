package signals

import (
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The files are written by hand: with encoding/json the shim's program is of 2.46
// MB (without 2.11, measured), and 2.5 MB are all that it may have.

// timeLayout is RFC 3339 with milliseconds; times are written in UTC.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Encode is the inverse of ParseVM, always as version 1. A Grace that is not a
// whole number becomes a string.
func (v VM) Encode() []byte {
	text := `{"version":1,"namespace":` + quote(v.Namespace) + `,"name":` + quote(v.Name) + `,"uid":` + quote(v.UID)
	switch {
	case v.Grace == "":
	case isInteger(v.Grace):
		text += `,"gracePeriodSeconds":` + v.Grace
	default:
		text += `,"gracePeriodSeconds":` + quote(v.Grace)
	}
	if v.Asks != "" {
		text += member("asks", v.Asks) + number("pid", uint64(max(v.PID, 0))) +
			number("requested", v.Requested) + member("result", resultText(v.Result)) + member("guest", v.Guest)
	}
	return []byte(text + "}\n")
}

// Encode is the shutdown file.
func (t Trigger) Encode() []byte {
	return []byte(`{"version":1,"uid":` + quote(t.UID) + member("signal", t.Signal) + member("time", stamp(t.Time)) + "}\n")
}

// EncodeStatus is status.json. What is zero is not written.
func EncodeStatus(s grace.Status) []byte {
	return []byte(`{"version":1,"uid":` + quote(s.UID) + `,"phase":` + quote(string(s.Phase)) +
		member("cause", string(s.Cause)) + member("startedAt", stamp(s.StartedAt)) + member("deadline", stamp(s.Deadline)) +
		member("outcome", string(s.Outcome)) + member("endedAt", stamp(s.EndedAt)) + member("message", s.Message) + number("request", s.Request) + "}\n")
}

// member is nothing where the value is.
func member(key, value string) string {
	if value == "" {
		return ""
	}
	return `,"` + key + `":` + quote(value)
}

// number is nothing where the value is 0.
func number(key string, value uint64) string {
	if value == 0 {
		return ""
	}
	return `,"` + key + `":` + strconv.FormatUint(value, 10)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// isInteger follows JSON: no leading zeros, no plus sign.
func isInteger(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	return strings.Trim(digits, "0123456789") == "" && digits != "" && (digits[0] != '0' || digits == "0")
}

// quote writes a JSON string (RFC 8259, section 7).
func quote(text string) string {
	const hex = "0123456789abcdef"
	quoted := []byte{'"'}
	for _, c := range []byte(strings.ToValidUTF8(text, "\ufffd")) {
		switch {
		case c < ' ':
			quoted = append(quoted, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c == '"' || c == '\\':
			quoted = append(quoted, '\\', c)
		default:
			quoted = append(quoted, c)
		}
	}
	return string(append(quoted, '"'))
}

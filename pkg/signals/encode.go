package signals

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// timeLayout is RFC 3339 with milliseconds; times are written in UTC.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

type triggerFile struct {
	Version int    `json:"version"`
	UID     string `json:"uid"`
	Signal  string `json:"signal,omitempty"`
	Time    string `json:"time,omitempty"`
}

type statusFile struct {
	Version   int           `json:"version"`
	UID       string        `json:"uid"`
	Phase     grace.Phase   `json:"phase"`
	Cause     grace.Cause   `json:"cause,omitempty"`
	StartedAt string        `json:"startedAt,omitempty"`
	Deadline  string        `json:"deadline,omitempty"`
	Outcome   grace.Outcome `json:"outcome,omitempty"`
	End       grace.End     `json:"end,omitempty"`
	EndedAt   string        `json:"endedAt,omitempty"`
	Message   string        `json:"message,omitempty"`
	Request   uint64        `json:"request,omitempty"`
	RequestBy grace.Mode    `json:"requestBy,omitempty"`

	Migration grace.MoveRequest `json:"migration,omitzero"`
}

// Encode is the inverse of ParseVM, always as version 1. A Grace that is not JSON
// becomes a string.
func (v VM) Encode() []byte {
	asking := v.Asking
	if asking.Asks == "" {
		asking = Asking{}
	}
	asking.Result = resultText(asking.Result)
	asking.Migration = asking.Migration.clean()
	return line(struct {
		vmFile
		Asking
	}{vmFile{Version: 1, Namespace: v.Namespace, Name: v.Name, UID: v.UID, Grace: graceJSON(v.Grace)}, asking})
}

func graceJSON(text string) json.RawMessage {
	if text == "" || json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return bytes.TrimSpace(line(text))
}

// Encode returns the shutdown file.
func (t Trigger) Encode() []byte {
	return line(triggerFile{Version: 1, UID: t.UID, Signal: t.Signal, Time: stamp(t.Time)})
}

// EncodeStatus returns status.json, without zero fields.
func EncodeStatus(s grace.Status) []byte {
	return line(statusFile{
		Version: 1, UID: s.UID, Phase: s.Phase, Cause: s.Cause, StartedAt: stamp(s.StartedAt), Deadline: stamp(s.Deadline),
		Outcome: s.Outcome, End: s.End, EndedAt: stamp(s.EndedAt), Message: s.Message, Request: s.Request, RequestBy: s.RequestBy, Migration: s.Migration,
	})
}

// line returns a JSON value and a newline. It keeps "<" readable for people.
func line(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // strings, numbers and valid JSON: it cannot fail
	return text.Bytes()
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

package signals

import (
	"bytes"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// saysStopped tells whether a status.json names uid and the phase Stopped. It
// is all that the shim wants of that file, and does without encoding/json. It
// reads less than ParseStatus does: in doubt it is false.
func saysStopped(content []byte, uid string) bool {
	var key, gotUID, gotPhase string
	depth := 0
	for i := 0; i < len(content); i++ {
		switch content[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := i + 1
			for end < len(content) && content[end] != '"' {
				if content[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(content) {
				return false
			}
			word := string(content[i+1 : end])
			i = end
			isKey := bytes.HasPrefix(bytes.TrimLeft(content[i+1:], " \t\r\n"), []byte(":"))
			switch {
			case depth != 1:
			case isKey:
				key = word
			case key == "uid":
				gotUID = word
			case key == "phase":
				gotPhase = word
			}
		}
	}
	return depth == 0 && gotUID == uid && gotPhase == string(grace.Stopped)
}

// Package oneline makes one line of a text that somebody else has written.
package oneline

import "strings"

// Cut returns text as one line of valid UTF-8. A text of more than most bytes is cut there,
// and ends with "…".
func Cut(text string, most int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

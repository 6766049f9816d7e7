package signals

import "strings"

// Members returns the members of a JSON object as they stand there: a string
// with its quotes and escapes, an object or a list with all that is in it. It
// is all of JSON that the shim reads, and does without encoding/json. What is
// no object, or is not complete, has none; what lies deeper is not checked. Of
// two members with one name the last one counts.
func Members(text string) map[string]string {
	text = strings.Trim(text, " \t\r\n")
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return nil
	}
	members := map[string]string{}
	for rest := skipSpace(text[1:]); rest != "}"; {
		var key, value string
		if key, rest = cutValue(rest); len(key) < 2 || key[0] != '"' || !strings.HasPrefix(rest, ":") {
			return nil
		}
		if value, rest = cutValue(skipSpace(rest[1:])); value == "" {
			return nil
		}
		members[key[1:len(key)-1]] = value
		switch {
		case strings.HasPrefix(rest, ","):
			rest = skipSpace(rest[1:])
		case rest != "}":
			return nil
		}
	}
	return members
}

// cutValue cuts the value that text begins with, and the space behind it.
func cutValue(text string) (value, rest string) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if i = endOfString(text, i); i >= len(text) {
				return "", ""
			}
			if depth == 0 {
				return text[:i+1], skipSpace(text[i+1:])
			}
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']') && depth > 0:
			if depth--; depth == 0 {
				return text[:i+1], skipSpace(text[i+1:])
			}
		case depth == 0 && strings.IndexByte(",:}] \t\r\n", c) >= 0:
			return text[:i], skipSpace(text[i:])
		}
	}
	return "", ""
}

// endOfString is where the string that begins at i ends.
func endOfString(text string, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}

func skipSpace(text string) string { return strings.TrimLeft(text, " \t\r\n") }

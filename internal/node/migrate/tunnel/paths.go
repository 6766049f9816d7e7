package tunnel

import "path"

// place returns a path of this host that the domain may use so. ok is false if it may not,
// or if the path is not clean ("..", "//").
func (a *Agreement) place(kind, p string) (is hostPath, ok bool) {
	if !clean(p) {
		return is, false
	}
	is = hostPath{name: p}
	readable := append(FirmwarePaths(), a.Firmware...)
	switch kind {
	case "read":
		if is.below = over(p, readable); is.below != "" {
			is.local = true
		} else {
			is.below = over(p, a.Paths)
		}
		return is, is.below != "" && !is.device()
	case "nvram":
		is.use = useWrite
		if p == nvramPath(a.Domain) {
			is.below = path.Dir(p)
			return is, true
		}
	case "disk":
		is.use = useDisk
	case "written":
		is.use = useWrite
	case "socket":
		is.use = useSocket
	}
	is.below = over(p, a.Paths)
	written := is.below != "" && !belowAny(p, readable) && !belowAny(p, systemPaths())
	return is, written && (is.use == useDisk || !is.device())
}

// clean reports whether text is an absolute path without detours.
func clean(p string) bool {
	return len(p) <= maxTextValue && pathPattern.MatchString(p) && path.Clean(p) == p
}

// isPath reports whether a kind of value is a path of this host.
func isPath(kind string) bool {
	switch kind {
	case "read", "disk", "written", "nvram", "socket":
		return true
	default:
		return false
	}
}

package signals

import (
	"cmp"
	"strconv"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// saysStopped reports whether a status.json names uid and the phase Stopped. In
// doubt it is false.
func saysStopped(content []byte, uid string) bool {
	m := Members(string(content))
	return m["uid"] == `"`+uid+`"` && m["phase"] == `"`+string(grace.Stopped)+`"`
}

// movedAt is when a status.json says that the VM of this uid went to another node,
// as it is written there; "" if it does not.
func movedAt(content []byte, uid string) string {
	m := Members(string(content))
	if !saysStopped(content, uid) || m["outcome"] != `"`+string(grace.Migrated)+`"` {
		return ""
	}
	return cmp.Or(m["endedAt"], "-")
}

// requestOf is the request of a status.json that names uid, 0 for none.
func requestOf(content []byte, uid string) uint64 {
	m := Members(string(content))
	if m["uid"] != `"`+uid+`"` {
		return 0
	}
	n, err := strconv.ParseUint(m["request"], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

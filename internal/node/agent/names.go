package agent

import "github.com/vmgrace/vmgrace/pkg/grace"

// maxRejected bounds how many rejected names are remembered.
const maxRejected = 1000

// maxName is the longest domain name that libvirt can run: it writes
// NAME.xml.new, and a file name has 255 bytes (tried with libvirt 9.0).
const maxName = 255 - len(".xml.new")

// validName reports whether a VM can have this name, and logs an invalid one once. The
// caller holds the lock.
func (a *Agent) validName(name string) bool {
	problem := ""
	if _, _, ok := grace.SplitDomainName(name); !ok {
		problem = "its name is not <namespace>_<name>"
	} else if len(name) > maxName {
		problem = "its name is too long for a libvirt domain"
	}
	if problem != "" && !a.rejected[name] && len(a.rejected) < maxRejected {
		a.rejected[name] = true
		a.cfg.Meter.Rejected("name")
		a.log.Warn("ignoring a name that cannot be a VM's", "name", name, "problem", problem)
	}
	return problem == ""
}

package inpod

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

const (
	// maxCPU bounds how much is read of the first CPU, in bytes.
	maxCPU = 64 << 10
	// digestSize is how many hexadecimal digits tell CPUs apart.
	digestSize = 16
)

// ofCPU reports whether a field of /proc/cpuinfo says something of a CPU, of x86 or ARM, on which a
// guest with the host's CPU depends.
func ofCPU(field string) bool {
	switch field {
	case "vendor_id", "cpu family", "model", "stepping", "flags",
		"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features":
		return true
	default:
		return false
	}
}

// machine describes a machine and, if its guest sees the host's CPU, that CPU. It is "" if
// something of it is unknown.
func machine(m signals.Machine, cpuinfo string) string {
	if m.Type == "" || m.Accelerator == "" || m.CPU == "" {
		return ""
	}
	text := strings.TrimSpace(m.Type + " " + m.Accelerator + " " + m.CPU + " " + m.Features)
	model, _, _ := strings.Cut(m.CPU, ",")
	if m.Accelerator != "kvm" || model != "host" && model != "max" {
		return text
	}
	cpu := hostCPU(cpuinfo)
	if cpu == "" {
		return ""
	}
	return text + " " + cpu
}

// hostCPU returns a digest of the first CPU in a file like /proc/cpuinfo, "" if it cannot be
// read.
func hostCPU(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() // it was only read
	lines, sum, found := bufio.NewScanner(io.LimitReader(f, maxCPU)), sha256.New(), false
	lines.Buffer(nil, maxCPU)
	for lines.Scan() && (strings.TrimSpace(lines.Text()) != "" || !found) {
		name, value, _ := strings.Cut(lines.Text(), ":")
		name = strings.TrimSpace(name)
		if ofCPU(name) {
			found = true
			_, _ = io.WriteString(sum, name+":"+strings.Join(strings.Fields(value), " ")+"\n") // a hash takes all
		}
	}
	if !found || lines.Err() != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))[:digestSize]
}

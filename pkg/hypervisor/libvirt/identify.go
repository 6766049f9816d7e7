package libvirt

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// identify returns the start time of a status file's process, 0 if the process that has
// the pid is not QEMU for this domain. The error is process.ErrGone if there is no such
// process.
func identify(s status) (start uint64, err error) {
	if s.pid == 0 {
		return 0, nil
	}
	if start, err = process.Start(s.pid); err != nil {
		return 0, err
	}
	cmdline, err := readAtMost("/proc/"+strconv.Itoa(s.pid)+"/cmdline", maxStatus)
	// Check for its end first: after that, the pid and the file may be another's.
	if err := cmp.Or(process.Check(s.pid, start), err); err != nil {
		return 0, err
	}
	if !isQEMU(cmdline, s) {
		return 0, nil
	}
	return start, nil
}

func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// isQEMU looks for "-uuid UUID" and "-name guest=NAME,..." among the arguments.
func isQEMU(cmdline []byte, s status) bool {
	args := strings.Split(string(bytes.TrimSuffix(cmdline, []byte{0})), "\x00")
	var uuid, name bool
	for i := 1; i < len(args); i++ {
		switch args[i-1] {
		case "-uuid":
			uuid = uuid || args[i] == s.uuid
		case "-name":
			// QEMU doubles a comma within a value; no name of ours has one.
			guest, _, _ := strings.Cut(args[i], ",")
			name = name || guest == "guest="+s.name
		}
	}
	return uuid && name
}

package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// identify opens the process of a status file. It is nil if the process that
// has the pid is not QEMU for this domain.
func identify(s status) (*process.Process, error) {
	if s.pid == 0 {
		return nil, nil
	}
	start, err := process.Start(s.pid)
	if err != nil {
		return nil, err
	}
	p, err := process.Open(s.pid, start)
	if err != nil {
		return nil, err
	}
	path := "/proc/" + strconv.Itoa(s.pid) + "/cmdline"
	cmdline, err := readAtMost(path, maxStatus)
	switch {
	case p.Gone(): // then the pid, and the file, may be another's
		err = fmt.Errorf("pid %d: %w", s.pid, process.ErrGone)
	case err == nil && isQEMU(cmdline, s):
		return p, nil
	}
	return nil, errors.Join(err, p.Close())
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

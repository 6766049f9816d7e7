package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	// CSIDriver is the mock driver of hack/csi: it attaches and mounts nothing, and
	// all others believe it. A volume whose name contains "slow" is detached after
	// CSISlowly, one with "stuck" never.
	CSIDriver = "mock.csi.vmgrace.io"
	// CSISlowly is how long a slow volume is being detached.
	CSISlowly = 3 * time.Second
)

// StartAttacher starts the driver's controller and the external-attacher of it, with
// what they say in a directory. The caller kills them, after an error too.
func (c Client) StartAttacher(dir string) (started []*node.Process, err error) {
	mock, err := CSI("mock-csi")
	if err != nil {
		return nil, err
	}
	attacher, err := CSI("csi-attacher")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "csi.sock")
	for _, command := range []*exec.Cmd{
		exec.Command(mock, socket, CSIDriver, CSISlowly.String()),
		exec.Command(attacher, socket, CSIDriver, c.Kubeconfig),
	} {
		p, err := node.StartProcess(command, filepath.Join(dir, filepath.Base(command.Path)+".log"))
		if err != nil {
			return started, fmt.Errorf("%s: %w", command.Path, err)
		}
		started = append(started, p)
	}
	return started, nil
}

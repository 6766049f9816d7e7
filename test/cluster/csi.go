package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	// CSIDriver is the mock driver of hack/csi. It attaches and mounts nothing, but all
	// others believe that it does. It detaches a volume whose handle contains "slow" after
	// CSISlowly, and never detaches one whose handle contains "stuck".
	CSIDriver = "mock.csi.vmgrace.io"
	// CSISlowly is how long the detachment of a slow volume takes.
	CSISlowly = 3 * time.Second
)

// StartAttacher starts the driver's controller and its external-attacher, with their logs
// in the directory dir. The caller kills them, also after an error.
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

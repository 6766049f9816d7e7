package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// keeper is a process with whose end a part of the cluster ends. It ends when its standard
// input ends, which also happens when the process that started it dies, for whatever
// reason.
type keeper struct {
	*node.Process
	hold *os.File // the other end of its standard input
}

// killGroup is the end of a keeper's program. It kills everything that was started in the
// keeper's process group.
const killGroup = `
echo ready
read -r _ || :
kill -9 0
`

// startKeeper starts a program that says "ready" and then waits on standard input.
func startKeeper(ctx context.Context, log string, command ...string) (*keeper, error) {
	in, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer in.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = in
	p, err := node.StartProcess(cmd, log)
	if err != nil {
		_ = hold.Close()
		return nil, err
	}
	k := &keeper{Process: p, hold: hold}
	ready := func() bool { return hasLine(log, "ready") || !p.Running() }
	if !node.Poll(ctx, waitTimeout, ready) || !p.Running() {
		k.close()
		return nil, fmt.Errorf("%s: %s", filepath.Base(log), p.Log())
	}
	return k, nil
}

// close ends the keeper and waits until everything in its group is killed.
func (k *keeper) close() {
	if k == nil {
		return
	}
	_ = k.hold.Close()
	if _, ok := k.Exited(waitTimeout); !ok {
		k.Kill()
	}
}

// start runs a program that dies with the keeper.
func (k *keeper) start(log string, command ...string) (*node.Process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pgid: k.PID()}
	return node.StartProcess(cmd, log)
}

// namespace returns the path of one of the keeper's namespaces: "net", "mnt" or "pid".
func (k *keeper) namespace(kind string) string {
	return "/proc/" + strconv.Itoa(k.PID()) + "/ns/" + kind
}

// stop ends a process with SIGTERM, and with SIGKILL where it takes longer than within.
func stop(p *node.Process, within time.Duration) {
	if p == nil || p.Signal(unix.SIGTERM) != nil {
		return
	}
	if _, ok := p.Exited(within); !ok {
		p.Kill()
	}
}

// freeze stops a process with SIGSTOP and waits until all its threads have stopped.
func freeze(p *node.Process) error {
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return fmt.Errorf("SIGSTOP to %d: %w", p.PID(), err)
	}
	stopped := func() bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.PID(), &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
		return err == nil && info.Signo != 0
	}
	if !node.Poll(context.Background(), 10*time.Second, stopped) {
		return errors.New("the process does not stop on SIGSTOP")
	}
	return nil
}

package node

import (
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// processes opens real processes.
type processes struct {
	deadlines *deadline.Thread
	ends      *process.Ends
}

func (p processes) Open(pid int, start uint64) (agent.Process, error) {
	opened, err := p.ends.Open(pid, start)
	if err != nil {
		return nil, err
	}
	return qemu{opened, p.deadlines}, nil
}

func (p processes) Watch(pid int) (agent.Watched, error) {
	w, err := p.ends.Watch(pid)
	if err != nil {
		return nil, err
	}
	return w, nil
}

type qemu struct {
	*process.Process
	deadlines *deadline.Thread
}

func (q qemu) Arm(at grace.Mono) (agent.Armed, error) {
	armed, err := q.deadlines.Arm(q.Process, at)
	if err != nil {
		return nil, err
	}
	return armed, nil
}

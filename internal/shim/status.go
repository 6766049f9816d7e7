package shim

import "time"

// movedTimeout is how long the agent may take to say that a guest has moved, after the end of
// the process that had sent it. It may have to be started again for that.
const movedTimeout = 10 * time.Second

// listen sets when status.json is looked at without a hint.
func (s *shim) listen(slow *time.Timer) {
	if !s.readsStatus() {
		slow.Stop()
		return
	}
	interval, err := statusInterval, s.asker.listen(s.config.Dir)
	if err != nil {
		interval = unheardInterval
	}
	s.try(err)
	slow.Reset(interval)
}

// readsStatus reports whether the shim acts upon status.json. With a command of ours
// status.json cannot say that the VM is at another node: the command is the VM, and its
// end counts.
func (s *shim) readsStatus() bool {
	return s.leaving() || s.complete && (s.asker.asks() || len(s.config.Command) == 0)
}

// lookAtStatus acts upon status.json: a request to ask the guest, or the end of a VM.
// That end counts if the shim has no process, or if the VM goes on at another node and
// the process is not the VM's any more.
func (s *shim) lookAtStatus() (ended bool) {
	switch {
	case s.leaving():
		return s.stopped()
	case s.asker.asks():
		s.try(s.asker.look())
		s.try(s.mover.look())
		return false
	}
	return s.moved()
}

func (s *shim) moved() bool {
	moved, err := s.sender.Moved()
	s.try(err)
	if moved {
		s.log.Print("the agent says that the VM has moved to another node")
	}
	return moved
}

// awaitMoved waits until status.json says that the VM goes on at another node, or for
// movedTimeout.
func (s *shim) awaitMoved() bool {
	again, over := time.NewTicker(pollInterval), time.NewTimer(movedTimeout)
	defer again.Stop()
	defer over.Stop()
	for !s.moved() {
		select {
		case <-again.C:
		case <-over.C:
			return false
		}
	}
	return true
}

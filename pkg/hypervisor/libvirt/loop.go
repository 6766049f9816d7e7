package libvirt

import (
	"sync"

	"libvirt.org/go/libvirt"
)

// loop is the one package variable: libvirt has one event loop implementation
// per process. It is registered once, before the first connection, and every
// connection of every driver needs it to run, for keepalives and events.
var loop eventLoop

type eventLoop struct {
	mu         sync.Mutex
	registered bool
	users      int
	stop       chan struct{} // closed: it is to end
	ended      chan struct{}
}

// join makes the loop run until the matching leave.
func (l *eventLoop) join() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.registered {
		if err := libvirt.EventRegisterDefaultImpl(); err != nil {
			return err
		}
		l.registered = true
	}
	if l.users++; l.users == 1 {
		l.stop, l.ended = make(chan struct{}), make(chan struct{})
		go iterate(l.stop, l.ended)
	}
	return nil
}

func iterate(stop <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	for {
		select {
		case <-stop:
			return
		default:
			if libvirt.EventRunDefaultImpl() != nil {
				return // only where no implementation is registered
			}
		}
	}
}

// leave ends the loop when nobody needs it any more.
func (l *eventLoop) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	close(l.stop)
	if interrupt() == nil {
		<-l.ended
	}
}

// interrupt lets an iteration of the loop return: it waits in poll(2) until
// there is something to do, and a new timer is something.
func interrupt() error {
	_, err := libvirt.EventAddTimeout(0, func(timer int) {
		_ = libvirt.EventRemoveTimeout(timer) // it fired once, which is all it is for
	})
	return err
}

package libvirt

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>

static int (*once)(void);

// find is called before the first iterate. The library is loaded by then, for good.
static const char *find(void) {
	void *library = dlopen("libvirt.so.0", RTLD_LAZY | RTLD_NOLOAD);
	if (library != 0)
		once = (int (*)(void))dlsym(library, "virEventRunDefaultImpl");
	return once == 0 ? "libvirt.so.0 has no virEventRunDefaultImpl" : 0;
}

// iterate runs the loop until *stop. It stays in C: each return to Go keeps the
// scheduler's own thread awake for some 10 ms, for every ping of libvirtd's. With
// the loop in Go an idle agent woke 14 times a second (measured), of 10 at most.
static int iterate(const int *stop) {
	int failed = 0;
	while (failed == 0 && !__atomic_load_n(stop, __ATOMIC_ACQUIRE))
		failed = once();
	return failed;
}
*/
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"libvirt.org/go/libvirt"
)

// loop is the one package variable: libvirt has one event loop implementation
// per process. It is registered once, before the first connection
// (virEventRegisterDefaultImpl), and every connection of every driver needs
// it to run, for keepalives and events.
var loop eventLoop

type eventLoop struct {
	register func() error // once; set under mu

	mu    sync.Mutex
	users int
	stop  *atomic.Int32 // not 0: it is to end
	ended chan struct{}
}

// join makes the loop run until the matching leave.
func (l *eventLoop) join() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.register == nil {
		l.register = sync.OnceValue(register)
	}
	if err := l.register(); err != nil {
		return err
	}
	if l.users++; l.users == 1 {
		l.stop, l.ended = new(atomic.Int32), make(chan struct{})
		go run(l.stop, l.ended)
	}
	return nil
}

func register() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	if why := C.find(); why != nil {
		return errors.New(C.GoString(why))
	}
	return nil
}

func run(stop *atomic.Int32, ended chan<- struct{}) {
	defer close(ended)
	// It fails only where no implementation is registered.
	C.iterate((*C.int)(unsafe.Pointer(stop)))
}

// leave ends the loop with its last user.
func (l *eventLoop) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	l.stop.Store(1)
	if interrupt() == nil {
		<-l.ended
	}
}

// interrupt lets an iteration of the loop return: the loop waits in poll(2) until
// there is something to do, and adding a timer is something.
func interrupt() error {
	_, err := libvirt.EventAddTimeout(0, func(timer int) {
		_ = libvirt.EventRemoveTimeout(timer) // it fired once, which is all it is for
	})
	return err
}

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

// iterate runs the loop for as long as the process lives. It stays in C: each return
// to Go keeps the scheduler's own thread awake for some 10 ms, for every ping of
// libvirtd's. With the loop in Go an idle agent woke 14 times a second (measured), of
// 10 at most. It fails only where no implementation is registered.
static void iterate(void) {
	while (once() == 0)
		;
}
*/
import "C"

import (
	"errors"
	"sync"

	"libvirt.org/go/libvirt"
)

// loop starts libvirt's event loop. It is the one package variable: libvirt has one
// implementation per process, which is registered once, before the first connection
// (virEventRegisterDefaultImpl), and every connection of every driver needs it to
// run, for keepalives and events.
var loop = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	if why := C.find(); why != nil {
		return errors.New(C.GoString(why))
	}
	go C.iterate()
	return nil
})

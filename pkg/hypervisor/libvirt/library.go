package libvirt

import (
	"fmt"

	"libvirt.org/go/libvirt"
)

// CheckLibrary reports whether libvirt's client library is present. The program is not
// linked with it, so that it can say what to install.
func CheckLibrary() error {
	if _, err := libvirt.GetVersion(); err != nil {
		return fmt.Errorf("cannot load libvirt's client library: %w; install it (Debian, Ubuntu: apt-get install libvirt0; Fedora: dnf install libvirt-libs)", plain(err))
	}
	return nil
}

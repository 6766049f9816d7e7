//go:build nightly && !unit

package handover

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// qcow2 writes an empty image with a backing file; "" = none.
func qcow2(w world, file, backing, format string) {
	w.Helper()
	const cluster = 1 << 16
	b := make([]byte, 4*cluster) // the header, the refcount table, a refcount block, the L1 table
	copy(b, "QFI\xfb")
	be := binary.BigEndian
	be.PutUint32(b[4:], 3)
	be.PutUint32(b[20:], 16)
	be.PutUint64(b[24:], 1<<20)
	be.PutUint32(b[36:], 1)
	be.PutUint64(b[40:], 3*cluster)
	be.PutUint64(b[48:], cluster)
	be.PutUint32(b[56:], 1)
	be.PutUint32(b[96:], 4)
	be.PutUint32(b[100:], 104)
	if backing != "" {
		be.PutUint32(b[104:], 0xe2792aca)
		be.PutUint32(b[108:], uint32(len(format)))
		copy(b[112:], format)
		be.PutUint64(b[8:], 256)
		be.PutUint32(b[16:], uint32(len(backing)))
		copy(b[256:], backing)
	}
	be.PutUint64(b[cluster:], 2*cluster)
	for i := range 4 {
		be.PutUint16(b[2*cluster+2*i:], 1)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		w.Fatal(err)
	}
}

func TestAChainOfImagesArrivesAsItWasWithItsEnd(t *testing.T) {
	// Given a guest whose disk has a chain of images that libvirt has found by itself below
	// the first one. The guest only reads the disk, because libvirt does not migrate a
	// writable image on a local file system.
	w := given(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("base.raw"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	qcow2(w, at("mid.qcow2"), at("base.raw"), "raw")
	qcow2(w, at("top.qcow2"), at("mid.qcow2"), "qcow2")
	v := w.guarded(node.Spec{Firmware: true, Image: at("top.qcow2")})
	if sent := v.Virsh(t, "dumpxml", "--migratable"); strings.Contains(sent, "mid.qcow2") {
		t.Error("libvirt itself sends the chain: what the agent adds is needless")
	}
	// When the guest is moved,
	v.mustMove(w.b, "")
	// then the target's libvirt has the same chain, with its end.
	is := w.b.Virsh(t, "dumpxml", v.Domain)
	for _, want := range []string{at("top.qcow2"), at("mid.qcow2"), at("base.raw"), "<backingStore/>"} {
		if !strings.Contains(is, want) {
			t.Errorf("%s is not there:\n%s", want, is)
		}
	}
}

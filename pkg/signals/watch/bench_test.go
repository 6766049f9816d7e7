package watch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// BenchmarkLook looks at one launcher directory with a registered shim.
func BenchmarkLook(b *testing.B) {
	d := Directory{Base: b.TempDir(), Name: "ns_vm", Namespace: "ns", VM: "vm"}
	registered(b, filepath.Join(d.Base, d.Name))
	b.ReportAllocs()
	for b.Loop() {
		if view, err := d.Look(); err != nil || !view.Registered {
			b.Fatalf("%+v, %v", view, err)
		}
	}
}

// BenchmarkScan200 is the scan that runs every ten seconds, because inotify can lose
// events. It leaves out the looks that a scan asks for.
func BenchmarkScan200(b *testing.B) {
	dir := b.TempDir()
	for n := range 200 {
		registered(b, filepath.Join(dir, fmt.Sprintf("ns_vm-%d", n)))
	}
	looks := 0
	w := NewParent(dir, slog.New(slog.DiscardHandler), func(string) { looks++ })
	b.ReportAllocs()
	for b.Loop() {
		looks = 0
		w.scan(nil)
		if looks != 200 {
			b.Fatalf("%d looks", looks)
		}
	}
}

func registered(b *testing.B, path string) {
	b.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		b.Fatal(err)
	}
	vm := signals.VM{Namespace: "ns", Name: "vm", UID: "u1", Grace: "30"}.Encode()
	if err := os.WriteFile(filepath.Join(path, signals.FileVM), vm, 0o600); err != nil {
		b.Fatal(err)
	}
}

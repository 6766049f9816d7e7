package signals_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// A launcher registers its VM, and is signalled.
func ExampleSender() {
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	sender := signals.NewSender(dir, signals.VM{Namespace: "default", Name: "vm1", UID: "6a1b0c9e", Grace: "30"})
	if err := sender.Register(); err != nil {
		fmt.Println(err)
	}
	vm, err := os.ReadFile(filepath.Join(dir, signals.FileVM))
	fmt.Printf("%s%v\n", vm, err)
	sent, err := sender.Send("SIGTERM", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	fmt.Println(sent, err)
	// Output:
	// {"version":1,"namespace":"default","name":"vm1","uid":"6a1b0c9e","gracePeriodSeconds":30}
	// <nil>
	// true <nil>
}

package grace_test

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// A domain is found, and its launcher is signalled.
func ExampleVM() {
	now, wall := grace.Mono(time.Hour), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	vm := grace.NewVM("default", "vm1", grace.Record{}, &grace.Policy{
		BootID: "boot", RetryInterval: 5 * time.Second, DestroyTimeout: 5 * time.Second, DefaultPeriod: 30 * time.Second,
	})
	decide := func() {
		d := vm.Next(now)
		for ; d.Do != grace.Wait; d = vm.Next(now) {
			fmt.Printf("%s (%s)\n", d.Do, d.Rule)
			vm.Done(d, grace.Result{Call: vm.Started(d, now), Wall: wall}, now)
		}
		fmt.Printf("%s (%s)\n", d.Do, d.Rule)
	}
	vm.SeeDirectory(grace.Directory{Present: true}, now, now)
	vm.SeeDomain(grace.Domain{Instance: grace.Instance{UUID: "6ea4a593", PID: 4711, Start: 1}, Power: grace.PowerOn}, now)
	decide()
	vm.SeeDirectory(grace.Directory{Present: true, Trigger: true, TriggerID: grace.TriggerID{Inode: 1}}, now, now)
	decide()
	fmt.Println(vm.Record().Shutdown.Cause, vm.Record().Shutdown.DeadlineAt.Sub(wall))
	// Output:
	// adopt (adopt)
	// watch (watch)
	// save (save)
	// look-directory (look-at-launcher)
	// look (look-at-domain)
	// write-status (write-status)
	// wait (running)
	// begin (begin)
	// inspect (inspect)
	// save (save)
	// ask (ask)
	// announce (announce)
	// write-status (write-status)
	// wait (waiting)
	// LauncherSignal 30s
}

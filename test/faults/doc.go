// Package faults breaks what the agent depends on (its disk, libvirt, QEMU, the launchers),
// for minutes if a fault needs minutes, and checks that the agent keeps its promises. The
// tests run the real binaries, a real libvirtd and real QEMU guests. Tests that take
// seconds are in test/acceptance.
package faults

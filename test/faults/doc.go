// Package faults breaks what is around the agent, for minutes where it takes
// minutes, and checks that no promise breaks with it. Everything here runs
// against the real binaries, a real libvirtd and real QEMU guests; what fits
// into seconds is in test/acceptance.
package faults

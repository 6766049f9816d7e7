// Package logind gives a test a real org.freedesktop.login1. It runs Debian's elogind,
// which hack/deps.sh has unpacked, on a bus of its own, in PID, mount, network and UTS
// namespaces. In these namespaces poweroff, reboot and halt are stand-ins that record when
// they ran.
package logind

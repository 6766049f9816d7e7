// Package logind gives a test a real org.freedesktop.login1: Debian's elogind, as
// hack/deps.sh has unpacked it, on a bus of its own, in PID, mount, network and UTS
// namespaces. In there poweroff, reboot and halt are stand-ins that write down when
// they ran.
package logind

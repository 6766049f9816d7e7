// Package failpoint lets a test kill the agent at an exact step between cause and
// cleanup. The agent acts on the world only through its ports (package agent) and its
// disk (package durable), so the points wrap those. Between them it only changes memory:
// a death there looks from outside like one at the next port.
//
// The points exist only under the build tag failpoint. Without it this package only
// returns its arguments, and the binary has no trace of it. With it:
//
//	VMGRACE_FAILPOINT=name[:n]    SIGKILL to itself at the (nth) pass of the point
//	VMGRACE_FAILPOINT_LOG=file    append the name of every point that is passed
//	VMGRACE_FAILPOINT_ARMED=file  count passes only once this file has been there
package failpoint

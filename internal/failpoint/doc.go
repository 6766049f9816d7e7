// Package failpoint lets a test kill the agent at an exact step between cause
// and cleanup. The agent does nothing to the world but through its ports
// (package agent) and its disk (package durable): that is where the points
// are, put on from outside. In between lies only memory, and a process that
// dies there looks from outside as one that died at the next port.
//
// The points exist only under the build tag failpoint. Without it this package
// is two functions that return what they get, and the binary has no trace of
// it. With it:
//
//	VMGRACE_FAILPOINT=name[:n]    SIGKILL to itself at the (nth) pass of the point
//	VMGRACE_FAILPOINT_LOG=file    append the name of every point that is passed
//	VMGRACE_FAILPOINT_ARMED=file  count passes only once this file has been there
package failpoint

// Package crash kills the agent with SIGKILL: at every named step between cause and
// cleanup, VMGRACE_KILLS times at random moments, and again and again in a soak.
package crash

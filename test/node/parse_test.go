package node

import (
	"syscall"
	"testing"
	"time"
)

func TestASignalIsFoundInTheKernelsTrace(t *testing.T) {
	const trace = `# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
      node-agent-411     [001] d..1.  1234.000100: signal_generate: sig=15 errno=0 code=0 comm=qemu-system-x86 pid=42 grp=1 res=0
      node-agent-411     [001] d..1.  1235.500100: signal_generate: sig=9 errno=0 code=0 comm=qemu-system-x86 pid=42 grp=1 res=0
      node-agent-411     [001] d..1.  1236.000000: signal_generate: sig=9 errno=0 code=0 comm=qemu-system-x86 pid=42 grp=1 res=0
      node-agent-411     [000] d..1.  1237.000000: signal_generate: sig=15 errno=0 code=0 comm=qemu-system-x86 pid=421 grp=1 res=0
`
	for _, c := range []struct {
		pid    int
		signal syscall.Signal
		since  time.Duration
		want   time.Duration
		ok     bool
	}{
		{42, syscall.SIGTERM, 0, 1234*time.Second + 100*time.Microsecond, true},
		{42, syscall.SIGTERM, 1235 * time.Second, 0, false}, // it was sent to an earlier process
		{42, syscall.SIGKILL, 1235 * time.Second, 1235*time.Second + 500100*time.Microsecond, true},
		{421, syscall.SIGTERM, 0, 1237 * time.Second, true},
		{421, syscall.SIGKILL, 0, 0, false},
		{4, syscall.SIGTERM, 0, 0, false},
	} {
		if at, ok, err := firstSent(trace, c.pid, c.signal, c.since); at != c.want || ok != c.ok || err != nil {
			t.Errorf("%v to %d: %v, %v, %v; want %v, %v", c.signal, c.pid, at, ok, err, c.want, c.ok)
		}
	}
}

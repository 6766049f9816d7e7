package node

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTerminationIsParsedFromQEMUsLog(t *testing.T) {
	const begin = "2026-11-20 11:06:32.287+0000: starting up libvirt version: 9.0.0\n"
	at := time.Date(2026, 11, 20, 11, 6, 35, 66538000, time.UTC)
	tests := map[string]struct {
		log  string
		want Termination
		ok   bool
	}{
		"none": {log: begin},
		"by libvirtd": {
			log:  begin + "2026-11-20T11:06:35.066538Z qemu-system-x86_64: terminating on signal 15 from pid 42 (/usr/sbin/libvirtd)\n",
			want: Termination{At: at, Signal: 15, PID: 42, Process: "/usr/sbin/libvirtd"}, ok: true,
		},
		"from a terminal": {
			log:  begin + "2026-11-20T11:06:35.066538Z qemu-system-x86_64: terminating on signal 2\n",
			want: Termination{At: at, Signal: 2}, ok: true,
		},
		"the first one counts": {
			log: "2026-11-20T11:06:35.066538Z q: terminating on signal 15 from pid 1 (a)\n" +
				"2026-11-20T11:06:36.066538Z q: terminating on signal 15 from pid 2 (b)\n",
			want: Termination{At: at, Signal: 15, PID: 1, Process: "a"}, ok: true,
		},
		"cut short": {log: begin + "2026-11-20T11:06:35.066538Z qemu-system-x86_64: terminating on sig"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseTermination(tc.log)
			if diff := cmp.Diff(tc.want, got); diff != "" || ok != tc.ok {
				t.Errorf("ok %v, want %v; -want +got:\n%s", ok, tc.ok, diff)
			}
		})
	}
}

func TestMetricsAreReadByTheirText(t *testing.T) {
	got := parseMetrics("# HELP x y z\n# TYPE x counter\nx{a=\"b c\",d=\"e\"} 3\nup 1\nbig 1.5e+09\n\nnonsense\n")

	want := map[string]float64{`x{a="b c",d="e"}`: 3, "up": 1, "big": 1.5e9}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

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

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// movesTimeout bounds the two benchmarks.
const movesTimeout = 15 * time.Minute

// moves measures row l: guests that move between two nodes. test/handover has the nodes and
// measures the moves. This function reads its figures.
func moves(b *bench) []figure {
	cmd := exec.CommandContext(b.ctx, filepath.Join(b.bin, "handover.test"), "-test.run=^$", "-test.bench=^Benchmark(Move|Relay)$",
		"-test.benchtime=1x", "-test.timeout="+movesTimeout.String())
	cmd.Dir = filepath.Join("test", "handover")
	cmd.Env = append(os.Environ(), "VMGRACE_BIN_DIR="+b.bin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return moved(benchmarks(out))
}

// moved returns the figures of row l: guests of both kinds beside virsh, and what each GiB of them
// costs the agents.
func moved(got map[string][]float64) (all []figure) {
	for _, f := range []struct{ metric, what, target string }{
		{"s-total", "a guest of 128 MiB moved: Running → runs at the target", "≤ 1.25 × virsh"},
		{"s-downtime", "a guest of 128 MiB moved: stopped at the source → resumed at the target", "≤ virsh + 150 ms"},
	} {
		for _, how := range []struct{ name, peer, key string }{
			{"native", "native", "agents"}, {"tunnelled", "tunnelled", "agents"}, {"in its pod", "tunnelled", "pod"},
		} {
			all = append(all, figure{
				row: "l", what: f.what + ", " + how.name, target: f.target, unit: seconds, ours: got["Move/"+how.peer+"/"+how.key+" "+f.metric],
				peerName: "virsh migrate --live, " + how.peer, peer: got["Move/"+how.peer+"/virsh "+f.metric],
			})
		}
	}
	return append(all, relays(got)...)
}

// relays returns what a relayed GiB costs the agents.
func relays(got map[string][]float64) (all []figure) {
	for _, agent := range []string{"source", "target"} {
		all = append(
			all,
			figure{row: "l", what: agent + "'s agent while 1 GiB passes, in its pod: more memory", target: "≤ 16 MiB", unit: func(v float64) string { return mebibytes(v * (1 << 20)) },
				ours: got["Relay/pod MiB-more-"+agent], peerName: "of libvirt", peer: got["Relay/tunnelled MiB-more-"+agent]},
			figure{row: "l", what: agent + "'s agent while 1 GiB passes, in its pod: CPU", target: "≤ 0.8 × libvirt's", unit: seconds,
				ours: got["Relay/pod cpu-s/GiB-"+agent], peerName: "of libvirt", peer: got["Relay/tunnelled cpu-s/GiB-"+agent]},
		)
	}
	return all
}

// benchmarks reads the output of go test -bench. It returns the values by name and unit,
// and drops the suffixes of the name that tell runs of one benchmark and machines apart.
func benchmarks(out []byte) map[string][]float64 {
	got := map[string][]float64{}
	for line := range bytes.Lines(out) {
		fields := strings.Fields(string(line))
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i >= 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		name, _, _ = strings.Cut(name, "#")
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				key := fmt.Sprintf("%s %s", name, fields[i+1])
				got[key] = append(got[key], v)
			}
		}
	}
	return got
}

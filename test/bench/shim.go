package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is how long a process rests before its memory is measured.
const settleTime = 300 * time.Millisecond

// shimRuns is the number of starts in a round.
const shimRuns = 10

// shims measures row g: the shim as in deploy/examples, the floor, and the floor below
// tini. The third shows what tini adds.
func shims(b *bench) []figure {
	tini, err := exec.LookPath("tini")
	if err != nil {
		b.Fatalf("tini is not installed: run make deps")
	}
	shim := filepath.Join(b.bin, "launcher-shim")
	commands := []func(dir string) []string{
		func(dir string) []string {
			return []string{shim, "--namespace", "bench", "--name", "vm", "--uid", "u", "--launcher-dir", dir, "--pid-file", filepath.Join(dir, "never")}
		},
		func(dir string) []string { return b.floor("shim", dir) },
		func(dir string) []string { return append([]string{tini, "--"}, b.floor("shim", dir)...) },
	}
	var registered, triggered, memory [3][]float64
	for range b.rounds {
		for i, command := range commands {
			var reg, trig []float64
			for n := range shimRuns {
				// The memory is measured once a round, because it takes a while to settle.
				r, t, rss := b.shimOnce(command, n == 0)
				reg, trig = append(reg, r), append(trig, t)
				if n == 0 {
					memory[i] = append(memory[i], rss)
				}
			}
			registered[i] = append(registered[i], median(reg))
			triggered[i] = append(triggered[i], median(trig))
		}
	}
	line := func(what, target string, u unit, v [3][]float64) figure {
		return figure{row: "g", what: what, target: target, unit: u, ours: v[0], floor: v[1], peer: v[2], peerName: "tini"}
	}
	size := [3][]float64{{b.size(shim)}, {b.size(b.floor("")[0])}, {b.size(tini)}}
	return []figure{
		line("shim: binary", "≤ 5 MB", megabytes, size),
		line("shim: RSS", "≤ 6 MiB", mebibytes, memory),
		line("shim: exec → registered", "≤ 10 ms", seconds, registered),
		line("shim: SIGTERM → trigger visible", "≤ 1 ms", seconds, triggered),
	}
}

func (b *bench) size(path string) float64 {
	b.Helper()
	info, err := os.Stat(path)
	b.must(err)
	return float64(info.Size())
}

// shimOnce starts a shim and stops it. It returns the seconds from the start to vm.json and
// from SIGTERM to the trigger, and with rest its memory in bytes.
func (b *bench) shimOnce(command func(dir string) []string, rest bool) (registered, triggered, rss float64) {
	dir := b.temp()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	b.must(err)
	defer unix.Close(fd)
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_CREATE)
	b.must(err)
	argv := command(dir)
	cmd := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
	begin := time.Now()
	b.must(cmd.Start())
	b.appears(fd, "vm.json")
	registered = time.Since(begin).Seconds()
	if rest {
		b.pause(settleTime)
		rss = float64(b.status(cmd.Process.Pid, "VmRSS:")) * 1024
	}
	begin = time.Now()
	b.must(cmd.Process.Signal(unix.SIGTERM))
	b.appears(fd, "shutdown")
	triggered = time.Since(begin).Seconds()
	_ = cmd.Process.Kill() // the floor has already ended
	_ = cmd.Wait()         // that signal ended it
	return registered, triggered, rss
}

// appears waits until a file appears in the directory that fd watches.
func (b *bench) appears(fd int, name string) {
	b.Helper()
	events := make([]byte, 4096)
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ready == 0 {
			b.Fatalf("%s does not appear: %v", name, err)
		}
		n, err := unix.Read(fd, events)
		b.must(err)
		for rest := events[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			size := binary.NativeEndian.Uint32(rest[12:])
			file := bytes.TrimRight(rest[unix.SizeofInotifyEvent:][:size], "\x00")
			if string(file) == name {
				return
			}
			rest = rest[unix.SizeofInotifyEvent+size:]
		}
	}
}

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// screen shows what happens, a line each. Its methods may be called concurrently.
type screen struct {
	w io.Writer

	mu    sync.Mutex
	begin time.Time
}

// say shows what somebody says or does, with the seconds since the first line.
func (s *screen) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begin.IsZero() {
		s.begin = time.Now()
	}
	fmt.Fprintf(s.w, "%6.2f s  %-16s %s\n", time.Since(s.begin).Seconds(), who, fmt.Sprintf(format, args...))
}

// speaker is a writer that shows each line of a program.
type speaker struct {
	say  func(line string)
	rest string
}

func (s *speaker) Write(b []byte) (int, error) {
	lines := strings.Split(s.rest+string(b), "\n")
	for _, line := range lines[:len(lines)-1] {
		s.say(strings.TrimSpace(line))
	}
	s.rest = lines[len(lines)-1]
	return len(b), nil
}

package gracecache

import (
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// spares are the names of files that lie ready, by the domain whose record they
// are for.
type spares struct {
	mu    sync.Mutex
	names map[string]string
}

// put tells whether there was none.
func (s *spares) put(domain, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[domain] != "" {
		return false
	}
	if s.names == nil {
		s.names = map[string]string{}
	}
	s.names[domain] = name
	return true
}

// take hands out a file to one caller.
func (s *spares) take(domain string) (name string, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, there = s.names[domain]
	delete(s.names, domain)
	return name, there
}

func (s *spares) has(domain string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[domain] != ""
}

func (s *spares) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.names))
}

// Prepare makes the next Put for a domain quicker: a file lies ready for it
// until that Put, a Delete or Close. Nothing depends on it; an error only says
// why there is none.
func (s *Store) Prepare(domain string) error {
	return s.write("prepare", func() error {
		if s.spares.has(domain) {
			return nil
		}
		spare, err := s.disk.Spare(s.dir, 0o600)
		if err != nil {
			return err
		}
		if !s.spares.put(domain, spare) { // another one was quicker
			return s.disk.Remove(s.dir, spare)
		}
		return nil
	})
}

// spareFor takes a spare, where the disk could make another: one without inodes is to
// be heard of now, not when the last spare is used up.
func (s *Store) spareFor(domain string) (name string, there bool) {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil || disk.Files > 0 && disk.Ffree == 0 {
		return "", false // some file systems count no inodes
	}
	return s.spares.take(domain)
}

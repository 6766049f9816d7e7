package gracecache

import "golang.org/x/sys/unix"

// Prepare makes the next Put for a domain quicker: a file lies ready for it
// until that Put, a Delete or Close. Nothing depends on it; an error only says
// why there is none.
func (s *Store) Prepare(domain string) error {
	return s.write("prepare", func() error {
		if _, there := s.spares.Load(domain); there {
			return nil
		}
		spare, err := s.disk.Spare(s.dir, 0o600)
		if err != nil {
			return err
		}
		if _, there := s.spares.LoadOrStore(domain, spare); there {
			return s.disk.Remove(s.dir, spare)
		}
		return nil
	})
}

// spareFor is spare, where the disk could make another: one without inodes is to
// be heard of now, not when the last spare is used up.
func (s *Store) spareFor(domain string) (name string, there bool) {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil || disk.Files > 0 && disk.Ffree == 0 {
		return "", false // some file systems count no inodes
	}
	return s.spare(domain)
}

// spare hands out the file that lies ready for a domain, to one caller.
func (s *Store) spare(domain string) (name string, there bool) {
	v, _ := s.spares.LoadAndDelete(domain)
	name, there = v.(string)
	return name, there
}

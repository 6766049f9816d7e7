package cgroup2

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
)

// archive is a cpio archive of the kernel's format "newc", which may follow another in an initramfs.
type archive struct {
	bytes.Buffer
	has map[string]bool
}

// add puts a file at a path, below directories that it makes.
func (a *archive) add(to string, content []byte) {
	for at := 1; ; at++ {
		slash := strings.IndexByte(to[at:], '/')
		if slash < 0 {
			break
		}
		if at += slash; !a.has[to[:at]] {
			a.entry(to[:at], 0o040755, nil)
		}
	}
	if !a.has[to] {
		a.entry(to, 0o100755, content)
	}
}

func (a *archive) entry(name string, mode int, content []byte) {
	a.has[name] = true
	name = strings.TrimPrefix(name, "/") + "\x00"
	// inode, mode, uid, gid, links, time, size, two devices of two numbers each, length of the name, no checksum
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", len(a.has), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
	for _, part := range []string{name, string(content)} {
		a.WriteString(part)
		a.Write(make([]byte, -a.Len()&3))
	}
}

// end closes the archive.
func (a *archive) end() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.Bytes()
}

// file adds a file of this machine at a path.
func (a *archive) file(t *testing.T, to, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	kit.Must(t, err)
	a.add(to, content)
}

// program adds a program of this machine with the libraries that it needs.
func (a *archive) program(t *testing.T, to, from string) {
	t.Helper()
	a.file(t, to, from)
	out, err := exec.CommandContext(t.Context(), "ldd", from).Output()
	if err != nil {
		return // it is static
	}
	for word := range strings.FieldsSeq(string(out)) {
		if path.IsAbs(word) && path.Clean(word) != path.Clean(from) {
			a.file(t, word, word)
		}
	}
}

package nodeagent

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
)

func TestOnlyWhatCanBeReadAgainIsLetGoOf(t *testing.T) {
	// Given: a program as proc_pid_smaps(5) shows it.
	mapping := func(addresses, rights, path, own string) string {
		return addresses + " " + rights + " 00003000 fe:00 42   " + path + "\nSize:  8 kB\nRss:  8 kB\nAnonymous:   " + own + " kB\nVmFlags: rd mr\n"
	}
	smaps := mapping("400000-402000", "r--p", "/bin/agent", "0") +
		mapping("402000-405000", "r-xp", "/bin/agent", "0") +
		mapping("405000-406000", "r--p", "/bin/agent", "4") + // relocated, then made read-only
		mapping("406000-407000", "rw-p", "/bin/agent", "0") +
		mapping("c000000000-c000400000", "rw-p", "", "0") +
		mapping("7f0000000000-7f0000001000", "r-xp", "/lib/it is gone (deleted)", "0") +
		mapping("7f0000002000-7f0000003000", "r--s", "/var/cache/shared", "0") +
		mapping("7ffd00000000-7ffd00002000", "r-xp", "[vdso]", "0") +
		mapping("zz-402000", "r-xp", "/bin/odd", "0") +
		mapping("402000-400000", "r-xp", "/bin/odd", "0")
	// When it is read.
	spans, err := readSpans(strings.NewReader(smaps))
	// Then code and constants are found, and nothing that somebody wrote.
	want := []span{{0x400000, 0x2000}, {0x402000, 0x3000}, {0x7f0000000000, 0x1000}}
	if err != nil || !slices.Equal(spans, want) {
		t.Errorf("found %#x, %v; want %#x", spans, err, want)
	}
}

func TestAProcessThatLetsGoOfItsFilesReadsThemAgain(t *testing.T) {
	// Given: this process, with libvirt's library in it, and a file all of whose
	// pages were read.
	mapped, content := mapFile(t)
	// When it lets go of all that it can read again.
	spans, err := mappedFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := letGo(spans); err != nil {
		t.Fatal(err)
	}
	// Then none of the file's pages is in it any more, and everything still works.
	if n := present(t, mapped); n != 0 {
		t.Errorf("%d pages are still there", n)
	}
	if !bytes.Equal(mapped, content) {
		t.Error("the file reads differently")
	}
	runtime.GC() // reads the tables of the whole program
	if err := libvirt.CheckLibrary(); err != nil {
		t.Error(err)
	}
}

func TestWhatTheStartMappedIsLetGoOfOnceItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Given: a file that an agent maps at its start, and one later.
		ctx, end := context.WithCancel(t.Context())
		log := slog.New(slog.DiscardHandler)
		early, _ := mapFile(t)
		ended := make(chan struct{})
		go func() { shrink(ctx, log); close(ended) }()
		pass(startOver - time.Second)
		late, _ := mapFile(t)
		if present(t, early) != filePages {
			t.Error("it is gone before the start is over")
		}
		// When the start is over, then the first one's pages are gone.
		<-ended
		if e, l := present(t, early), present(t, late); e != 0 || l != filePages {
			t.Errorf("%d pages of the start and %d later ones are there", e, l)
		}
		// An agent that ends does not wait for that.
		end()
		begin := time.Now()
		shrink(ctx, log)
		if took := time.Since(begin); took != 0 {
			t.Errorf("an agent that ends waits %v", took)
		}
	})
}

const filePages = 256

// mapFile maps a file and reads all its pages.
func mapFile(t *testing.T) (mapped, content []byte) {
	t.Helper()
	content = bytes.Repeat([]byte("vmgrace\n"), filePages*os.Getpagesize()/8)
	path := filepath.Join(t.TempDir(), "constants")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err = unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	if !bytes.Equal(mapped, content) || present(t, mapped) != filePages {
		t.Fatal("not all of the file is in memory")
	}
	return mapped, content
}

// present counts the pages of this mapping in this process, by the highest bit of
// their entries in /proc/self/pagemap (proc_pid_pagemap(5)).
func present(t *testing.T, mapped []byte) (pages int) {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first := int64(uintptr(unsafe.Pointer(&mapped[0]))) / int64(os.Getpagesize())
	entries := make([]byte, len(mapped)/os.Getpagesize()*8)
	if _, err := f.ReadAt(entries, first*8); err != nil {
		t.Fatal(err)
	}
	for entry := range slices.Chunk(entries, 8) {
		if binary.NativeEndian.Uint64(entry)>>63 == 1 {
			pages++
		}
	}
	return pages
}

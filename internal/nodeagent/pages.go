package nodeagent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startOver is when an agent is done with its start: lists get rarer after 20 s.
const startOver = 25 * time.Second

// span is a part of a file in memory that nothing was ever written to.
type span struct{ start, size uintptr }

// shrink takes the pages of the program and its libraries out of this process
// once the start is over, and ends. Most of them only the start needs, or nobody:
// beside a page that is used Linux maps others. They stay in the page cache, from
// which those that are used come back, and the rest is free to go (measured: two
// thirds of all that is resident; docs/performance.md).
//
// Only what was there at the start, too: what is mapped for a moment, as the
// dynamic linker's cache is, may be gone before the pages are, and something else
// be there.
func shrink(ctx context.Context, log *slog.Logger) {
	first, err := mappedFiles()
	select {
	case <-ctx.Done():
		return
	case <-time.After(startOver):
	}
	now, errNow := mappedFiles()
	now = slices.DeleteFunc(now, func(s span) bool { return !slices.Contains(first, s) })
	if err := errors.Join(err, errNow, letGo(now)); err != nil {
		log.Debug("some of the memory of the start is kept", "err", err)
	}
}

func mappedFiles() ([]span, error) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readSpans(f)
}

// readSpans takes from smaps (proc_pid_smaps(5)) what is read-only, of a file and
// without a page of its own. The others have what the dynamic linker wrote there
// before it took the right to write: that would be lost.
func readSpans(smaps io.Reader) ([]span, error) {
	var found []span
	var at span // of the mapping that is read; no size: not of interest
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), " ")
		switch {
		case strings.Contains(key, "-"):
			at = readOnlySpan(key, strings.Fields(rest))
		case key == "Anonymous:" && at.size > 0 && strings.TrimSpace(rest) == "0 kB":
			found = append(found, at)
		}
	}
	return found, lines.Err()
}

// readOnlySpan has no size where rest, which is rights, offset, device, inode and
// path, is not of a file, or the file can be written to.
func readOnlySpan(addresses string, rest []string) span {
	if len(rest) < 5 || !strings.HasPrefix(rest[4], "/") || rest[0] != "r-xp" && rest[0] != "r--p" {
		return span{}
	}
	from, to, _ := strings.Cut(addresses, "-")
	begin, err := strconv.ParseUint(from, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(to, 16, strconv.IntSize)
	if err != nil || err2 != nil || end < begin {
		return span{}
	}
	return span{start: uintptr(begin), size: uintptr(end - begin)}
}

// letGo: whoever touches such a page reads the file's again (MADV_DONTNEED of
// madvise(2)).
func letGo(spans []span) error {
	var failed []error
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.start, s.size, unix.MADV_DONTNEED); errno != 0 {
			failed = append(failed, fmt.Errorf("madvise %x-%x: %w", s.start, s.start+s.size, errno))
		}
	}
	return errors.Join(failed...)
}

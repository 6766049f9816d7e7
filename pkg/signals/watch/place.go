package watch

import (
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// place is a path at which there may be a directory to watch.
type place struct {
	path string
	stat func(path string, into *unix.Stat_t) error // Lstat where it may be a tenant's link
	// seen is the last directory that was there. watched means that inotify watches it.
	seen    fileID
	watched bool
	refused bool // inotify refused it, and that was logged
	looked  bool // false: look at it, even if it is unchanged
	// changed is its ctime. While that is young, a further change may have the same one.
	changed unix.Timespec
	young   bool
}

// fileID is a device and an inode. It tells a directory from others that exist at the
// same time. Zero means no directory.
type fileID = [2]uint64

// forget marks it as not watched. It keeps refused, so that the reason is not logged
// again.
func (at *place) forget() { *at = place{path: at.path, stat: at.stat, refused: at.refused} }

// identify treats an unreadable path as missing. The look at it reports the error.
func (at *place) identify() (is fileID, changed unix.Timespec) {
	var st unix.Stat_t
	if err := at.stat(at.path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fileID{}, unix.Timespec{}
	}
	return fileID{st.Dev, st.Ino}, st.Ctim
}

// arm watches what is at path now, and reports whether to look at it: it is new, may have
// changed, or cannot be watched. The error says why it cannot, once.
func (at *place) arm(notify *fsnotify.Watcher) (look bool, err error) {
	seen, changed := at.identify()
	is := seen != fileID{}
	differs := seen != at.seen || changed != at.changed || is != at.watched
	look = differs || at.young || !at.looked
	if seen != at.seen || is != at.watched {
		at.watched = false
		unwatch(notify, at.path)
		if is && notify != nil {
			err = notify.Add(at.path)
			at.watched = err == nil
		}
		refused := err != nil
		if at.refused {
			err = nil
		}
		at.refused = refused
	}
	at.seen, at.changed, at.young, at.looked = seen, changed, differs, true
	return look, err
}

// watchList returns what fsnotify watches. fsnotify drops a watch that has ended. A later
// mount can look the same, because device and inode numbers are reused at once.
func watchList(notify *fsnotify.Watcher) map[string]bool {
	kept := map[string]bool{}
	if notify != nil {
		for _, path := range notify.WatchList() {
			kept[path] = true
		}
	}
	return kept
}

// unwatch lets go of the watch of path, if there is one.
func unwatch(notify *fsnotify.Watcher, path string) {
	if notify != nil {
		_ = notify.Remove(path) // fails if there is none
	}
}

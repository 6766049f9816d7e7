package watch

import (
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// place is a path at which there may be a directory to watch.
type place struct {
	path string
	stat func(path string, into *unix.Stat_t) error // Lstat where it may be a tenant's link
	// seen is the directory that was there last; watched: inotify has it.
	seen    fileID
	watched bool
	refused bool // inotify refused it, and that was logged
	looked  bool // false: it is to be looked at, whatever there is to see here
	// changed is its ctime. While that is young, the next change may have the same one.
	changed unix.Timespec
	young   bool
}

// fileID is a device and an inode: it tells a directory from others that are there at
// the same time. The zero one is that of no directory.
type fileID = [2]uint64

// forget counts it as not watched. Why it could not be was logged already.
func (at *place) forget() { *at = place{path: at.path, stat: at.stat, refused: at.refused} }

// identify treats an unreadable path as missing. The look at it says what is wrong.
func (at *place) identify() (is fileID, changed unix.Timespec) {
	var st unix.Stat_t
	if err := at.stat(at.path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fileID{}, unix.Timespec{}
	}
	return fileID{st.Dev, st.Ino}, st.Ctim
}

// arm watches what is at path now, and reports whether that is to be looked at:
// it is not what was there before, may have changed, or cannot be watched. The
// error says why it cannot, once.
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

// watchList is what fsnotify watches: it drops a watch that has ended, and a
// later mount can look the same, as device and inode numbers are used again at
// once.
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
		_ = notify.Remove(path) // fails where there is none any more
	}
}

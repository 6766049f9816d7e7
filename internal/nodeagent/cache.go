package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// openCache opens the state directory. One that cannot be written is an error
// at the first start; where records are, their VMs are guarded all the same,
// from memory, and unsaved is true.
func (o *Options) openCache(disk durable.Disk, log *slog.Logger) (store *gracecache.Store, loaded gracecache.Loaded, unsaved bool, err error) {
	store, openErr := gracecache.OpenOn(disk, o.StateDir)
	if store == nil {
		return nil, loaded, false, openErr
	}
	loaded, err = store.Load()
	switch {
	case err != nil:
	case openErr == nil:
		return store, loaded, false, nil
	case len(loaded.Records) > 0:
		log.Error("going on from memory, because VMs are recorded here", "err", openErr)
		return store, loaded, true, nil
	default:
		err = openErr
	}
	return nil, loaded, false, errors.Join(err, store.Close())
}

// The state directory is looked at soon after its watch or a mount gives cause
// to, and now and then; often while it cannot be watched or kept.
const (
	cacheLook   = 10 * time.Second
	cacheSearch = time.Second
	// cacheSettle lets whoever removes the directory come to the end of it.
	cacheSettle = 200 * time.Millisecond
)

// keepCache looks whether the state directory is still the one that was
// opened, until ctx ends. Where it is not, it is taken again, and saveAgain is
// called so that the records come back, or that their keepers say that they
// cannot.
func keepCache(ctx context.Context, dir string, store *gracecache.Store, saveAgain, count func(), log *slog.Logger) error {
	watch := newChanges(ctx, dir, log)
	defer watch.close()
	for failing := false; ; {
		armed := watch.arm()
		taken, err := store.Retake()
		switch {
		case taken:
			log.Error("the state directory was removed or replaced; it is taken again and every record written anew", "err", err)
			count()
			saveAgain()
			continue // it is not watched yet
		case err != nil && !failing:
			log.Error("the state directory cannot be kept; going on from memory", "err", err)
			saveAgain()
		}
		failing = err != nil
		wait := cacheLook
		if failing || !armed {
			wait = cacheSearch
		}
		if !watch.wait(ctx, wait) {
			return nil
		}
	}
}

package inpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

const (
	// moveEvery is how often to look for the answer to a request about a migration. The guest may
	// be stopped meanwhile, so no event is waited for.
	moveEvery = 50 * time.Millisecond
	// sentEvery is how often to look, without an event, at a guest that is being sent. Each look
	// costs processor time for as long as that takes.
	sentEvery = 500 * time.Millisecond
)

var (
	errNotSeen = errors.New("its launcher directory was not looked at yet")
	errOther   = errors.New("its process is not that of the launcher that is here now")
)

// move writes a request about a migration, and waits until it is carried out. One at a time is
// made, so that none replaces one that the launcher has not read yet. It returns its number.
func (v *vm) move(ctx context.Context, i grace.Instance, r grace.MoveRequest) (n uint64, err error) {
	bound, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	select {
	case v.moving <- struct{}{}:
		defer func() { <-v.moving }()
	case <-bound.Done():
		return 0, context.Cause(bound)
	}
	v.mu.Lock()
	old := v.moves.says.Able == ""
	v.mu.Unlock()
	if old {
		return 0, errTooOld
	}
	n, err = v.put(bound, func() uint64 {
		r.Request = max(v.moves.asked.Request+1, elapsed())
		v.moves.asked = r
		return r.Request
	})
	if err != nil {
		return 0, err
	}
	return n, v.until(bound, i, moveEvery, func(m *moves) (bool, error) {
		switch {
		case m.answered < n:
			return false, nil
		case m.result != signals.ResultOK:
			return true, fmt.Errorf("the launcher could not %s: %.200q", r.Do, m.result)
		default:
			return true, nil
		}
	})
}

// until waits until what is known of the migrations of an instance says that it is over. It looks
// that often.
func (v *vm) until(ctx context.Context, i grace.Instance, every time.Duration, over func(*moves) (bool, error)) error {
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		v.mu.Lock()
		done, err := over(&v.moves)
		news, p, now := v.news, v.process, v.instance
		v.mu.Unlock()
		switch {
		case now != i || p == nil || p.Gone():
			return fmt.Errorf("%w: its process has ended", hypervisor.ErrNotFound)
		case done:
			return err
		}
		select {
		case <-news:
		case <-p.Done():
		case <-look.C:
			_ = v.refresh(ctx) // the next one may work
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refresh looks at the launcher directory. It waits for a look that hangs, and adds none to it.
func (v *vm) refresh(ctx context.Context) error {
	_, err := v.lookWithin(ctx)
	return err
}

func (v *vm) lookWithin(ctx context.Context) (watch.View, error) {
	bound, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	select {
	case v.looking <- struct{}{}:
	case <-bound.Done():
		return watch.View{}, fmt.Errorf("%w: the launcher directory does not answer: %w", hypervisor.ErrUnavailable, bound.Err())
	}
	seen := make(chan watch.View, 1)
	err := within(bound, func() error {
		defer func() { <-v.looking }()
		view, err := v.Look()
		seen <- view
		return err
	})
	if err != nil {
		return watch.View{}, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	return <-seen, nil
}

// stay looks at the launcher directory and, if it has to, asks the launcher.
func (v *vm) stay(ctx context.Context) (hypervisor.Stay, grace.Instance, error) {
	view, err := v.lookWithin(ctx)
	if err != nil {
		return hypervisor.StayUnknown, grace.Instance{}, err
	}
	i, runs := v.known()
	if !runs {
		if v.absent(&view) {
			return hypervisor.StayAbsent, grace.Instance{}, nil
		}
		return hypervisor.StayUnknown, grace.Instance{}, errors.New("its process cannot be identified")
	}
	stay, known := v.says()
	if !known {
		if _, err := v.move(ctx, i, grace.MoveRequest{Do: grace.MoveLook}); err != nil {
			return hypervisor.StayUnknown, i, err
		}
		stay, _ = v.says()
	}
	return stay, i, nil
}

func (v *vm) says() (stay hypervisor.Stay, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moves.stay(time.Now())
}

// absent reports whether a view shows that the VM has no process, once none is known to run.
func (v *vm) absent(view *watch.View) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	says := claim{view.Holder.PID, view.PID, view.Holder.File}
	switch {
	case !view.Registered:
		return true
	case !view.Readable:
		return false
	case view.PID == 0 && view.Locked:
		return true // its launcher has none yet, or says that it has ended
	case v.refused.claim == says && v.refused.why == nil:
		return true // it had ended
	default:
		return v.found.file == view.Holder.File && v.found.pid == view.PID
	}
}

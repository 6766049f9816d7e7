package gracecache

import (
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func toDisk(rec grace.Record) diskRecord {
	length := rec.Period.Length.String()
	d := diskRecord{
		Namespace:   rec.Namespace,
		Name:        rec.Name,
		UID:         rec.UID,
		VMICreated:  rec.VMICreated.UTC(),
		Pod:         rec.Pod,
		Holdable:    rec.Holdable,
		Moving:      rec.Moving,
		BootID:      rec.BootID,
		GracePeriod: diskPeriod{Length: &length, Source: rec.Period.Source},
		Instance:    diskInstance(rec.Instance),
		Launcher:    diskHolder(rec.Launcher),
	}
	if h := rec.Hold; h.UnderWay() {
		d.Hold = &diskHold{
			Reason: h.Reason, Start: &h.Start, Until: &h.Until, Leaving: h.Leaving, Moving: h.Moving,
			StartedAt: h.StartedAt.UTC().Format(wallTime), UntilAt: h.UntilAt.UTC().Format(wallTime),
		}
	}
	if s := rec.Shutdown; rec.ShuttingDown() {
		d.Shutdown = &diskShutdown{
			Cause:      s.Cause,
			Start:      &s.Start,
			Deadline:   &s.Deadline,
			StartedAt:  s.StartedAt.UTC().Format(wallTime),
			DeadlineAt: s.DeadlineAt.UTC().Format(wallTime),
			DryRun:     s.DryRun,
			Requested:  s.Requested,
			Signalled:  s.Signalled,
			Over:       s.Over,
		}
	}
	return d
}

func (d *diskRecord) toRecord() (grace.Record, error) {
	rec := grace.Record{
		Namespace:  d.Namespace,
		Name:       d.Name,
		UID:        d.UID,
		VMICreated: d.VMICreated.UTC(),
		Pod:        d.Pod,
		Holdable:   d.Holdable,
		Moving:     d.Moving,
		BootID:     d.BootID,
		Instance:   grace.Instance(d.Instance),
		Launcher:   grace.Holder(d.Launcher),
	}
	if d.GracePeriod.Length == nil {
		return grace.Record{}, errors.New("no grace period")
	}
	length, err := time.ParseDuration(*d.GracePeriod.Length)
	if err != nil {
		return grace.Record{}, fmt.Errorf("grace period: %w", err)
	}
	rec.Period = grace.Period{Length: length, Source: d.GracePeriod.Source}
	if d.Hold != nil {
		if rec.Hold, err = d.Hold.toHold(); err != nil {
			return grace.Record{}, fmt.Errorf("hold: %w", err)
		}
	}
	if d.Shutdown != nil {
		if rec.Shutdown, err = d.Shutdown.toShutdown(); err != nil {
			return grace.Record{}, fmt.Errorf("shutdown: %w", err)
		}
	}
	return rec, nil
}

func (d *diskShutdown) toShutdown() (grace.Shutdown, error) {
	var none grace.Shutdown
	if d.Cause == "" || d.Start == nil || d.Deadline == nil {
		return none, errors.New("no cause, start or deadline")
	}
	started, deadline, err := parseBoth("startedAt", d.StartedAt, "deadlineAt", d.DeadlineAt)
	if err != nil {
		return none, err
	}
	return grace.Shutdown{
		Cause:      d.Cause,
		Start:      *d.Start,
		Deadline:   *d.Deadline,
		StartedAt:  started,
		DeadlineAt: deadline,
		DryRun:     d.DryRun,
		Requested:  d.Requested,
		Signalled:  d.Signalled,
		Over:       d.Over,
	}, nil
}

func (d *diskHold) toHold() (grace.Hold, error) {
	if d.Start == nil || d.Until == nil {
		return grace.Hold{}, errors.New("no start or end")
	}
	started, until, err := parseBoth("startedAt", d.StartedAt, "untilAt", d.UntilAt)
	if err != nil {
		return grace.Hold{}, err
	}
	return grace.Hold{Reason: d.Reason, Start: *d.Start, Until: *d.Until, StartedAt: started, UntilAt: until, Leaving: d.Leaving, Moving: d.Moving}, nil
}

// parseBoth parses the wall clock times of a begin and an end, by their names.
func parseBoth(begin, beginText, end, endText string) (from, to time.Time, err error) {
	if from, err = time.Parse(time.RFC3339, beginText); err != nil {
		return from, to, fmt.Errorf("%s: %w", begin, err)
	}
	if to, err = time.Parse(time.RFC3339, endText); err != nil {
		return from, to, fmt.Errorf("%s: %w", end, err)
	}
	return from.UTC(), to.UTC(), nil
}

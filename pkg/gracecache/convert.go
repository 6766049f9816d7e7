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
		Pod:         rec.Pod,
		BootID:      rec.BootID,
		GracePeriod: diskPeriod{Length: &length, Source: rec.Period.Source},
		Instance:    diskInstance(rec.Instance),
	}
	if !rec.VMICreated.IsZero() {
		d.VMICreated = rec.VMICreated.UTC().Format(time.RFC3339)
	}
	if rec.Launcher != (grace.Holder{}) {
		holder := diskHolder(rec.Launcher)
		d.Launcher = &holder
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
		}
	}
	return d
}

func (d *diskRecord) toRecord() (grace.Record, error) {
	rec := grace.Record{
		Namespace: d.Namespace,
		Name:      d.Name,
		UID:       d.UID,
		Pod:       d.Pod,
		BootID:    d.BootID,
		Instance:  grace.Instance(d.Instance),
	}
	if d.GracePeriod.Length == nil {
		return grace.Record{}, errors.New("no grace period")
	}
	length, err := time.ParseDuration(*d.GracePeriod.Length)
	if err != nil {
		return grace.Record{}, fmt.Errorf("grace period: %w", err)
	}
	rec.Period = grace.Period{Length: length, Source: d.GracePeriod.Source}
	if d.VMICreated != "" {
		created, err := time.Parse(time.RFC3339, d.VMICreated)
		if err != nil {
			return grace.Record{}, fmt.Errorf("vmiCreated: %w", err)
		}
		rec.VMICreated = created.UTC()
	}
	if d.Launcher != nil {
		rec.Launcher = grace.Holder(*d.Launcher)
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
	started, err := time.Parse(time.RFC3339, d.StartedAt)
	if err != nil {
		return none, fmt.Errorf("startedAt: %w", err)
	}
	deadline, err := time.Parse(time.RFC3339, d.DeadlineAt)
	if err != nil {
		return none, fmt.Errorf("deadlineAt: %w", err)
	}
	return grace.Shutdown{
		Cause:      d.Cause,
		Start:      *d.Start,
		Deadline:   *d.Deadline,
		StartedAt:  started.UTC(),
		DeadlineAt: deadline.UTC(),
		DryRun:     d.DryRun,
		Requested:  d.Requested,
		Signalled:  d.Signalled,
	}, nil
}

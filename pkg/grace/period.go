package grace

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxPeriod is the longest grace period. A longer one is cut to it. With 100 years no sum
// of times overflows.
const MaxPeriod = 100 * 365 * 24 * time.Hour

// Errors of ParseSeconds. An invalid statement is never a grace period of 0.
var (
	ErrNegative  = errors.New("a grace period cannot be negative")
	errNotNumber = errors.New("a grace period is a whole number of seconds")
	// ErrTooLong comes with the usable value MaxPeriod.
	ErrTooLong = fmt.Errorf("a grace period is at most %d seconds", int64(MaxPeriod/time.Second))
)

// ParseSeconds reads a grace period stated as a whole number of seconds. With
// ErrTooLong the returned length is MaxPeriod and may be used; with any other
// error there is no length.
func ParseSeconds(text string) (time.Duration, error) {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, errNotNumber
	}
	digits = strings.TrimLeft(digits, "0")
	if digits != "" && text[0] == '-' {
		return 0, ErrNegative
	}
	var seconds int64
	for _, d := range digits {
		seconds = seconds*10 + int64(d-'0')
		if seconds > int64(MaxPeriod/time.Second) {
			return MaxPeriod, ErrTooLong
		}
	}
	return time.Duration(seconds) * time.Second, nil
}

// WholeSeconds rounds a grace period up to seconds: a record must never say
// less than the guest gets.
func WholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// length returns the stated grace period; ok is false if there is none or it is invalid.
func (s *stated) length() (length time.Duration, ok bool) {
	length, err := ParseSeconds(s.Text)
	return length, s.Read && (err == nil || errors.Is(err, ErrTooLong))
}

// resolve picks the grace period from what is stated, best first. The cached value
// replaces only a source that cannot be read now.
func resolve(cached Period, fallback time.Duration, all [len(sources)]stated) Period {
	for i := range all {
		length, ok := all[i].length()
		switch {
		case ok:
			return Period{Length: length, Source: sources[i]}
		case !all[i].Read && cached.Source == sources[i]:
			return cached
		}
	}
	return Period{Length: fallback, Source: SourceDefault}
}

// resolve picks the grace period from what the sources say now. A VMI that is missing or
// has another UID counts as unreadable.
func (v *VM) resolve() {
	o := &v.obs
	uid, created := o.Owner.Is(&v.rec)
	vmi, launcher := &o.Stated[byVMI], &o.Stated[byLauncher]
	vmi.Read, vmi.Text = !created.IsZero() && o.Owner.Shown.UID == uid, o.Owner.Shown.Grace
	launcher.Read, launcher.Text = o.Dir.Registered && o.Dir.Readable, o.Dir.Grace
	cached := o.Arrival.period(uid)
	if o.Recorded {
		cached = v.rec.Period
	}
	o.Period = resolve(cached, v.policy.DefaultPeriod, o.Stated)
}

// invalidPeriod reports an invalid grace period once. It counts as not stated.
func invalidPeriod(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	for i, s := range o.Stated {
		if _, err := ParseSeconds(s.Text); err != nil && s.Read && s.Text != "" && s.Text != s.Reported {
			return Decision{Do: RejectPeriod, Source: sources[i], Text: s.Text}, true
		}
	}
	return next()
}

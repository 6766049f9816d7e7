package grace

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseSeconds(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
		err  error
	}{
		{"30", 30 * time.Second, nil},
		{"0", 0, nil},
		{"-0", 0, nil},
		{"007", 7 * time.Second, nil},
		{"-1", 0, ErrNegative},
		{"-9223372036854775808", 0, ErrNegative},
		{"9223372036854775807", MaxPeriod, ErrTooLong},
		{"99999999999999999999999999", MaxPeriod, ErrTooLong},
		{"", 0, errNotNumber},
		{"-", 0, errNotNumber},
		{"30s", 0, errNotNumber},
		{"1e3", 0, errNotNumber},
		{"30.0", 0, errNotNumber},
		{`"30"`, 0, errNotNumber},
		{" 30", 0, errNotNumber},
		{"٣", 0, errNotNumber},
	} {
		got, err := ParseSeconds(c.text)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("ParseSeconds(%q) = %v, %v; want %v, %v", c.text, got, err, c.want, c.err)
		}
	}
}

// An invalid statement may be anything but a grace period of 0.
func FuzzParseSeconds(f *testing.F) {
	f.Add("30")
	f.Add("-1")
	f.Add("9223372036854775808")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseSeconds(text)
		if d < 0 || d > MaxPeriod {
			t.Fatalf("ParseSeconds(%q) = %v", text, d)
		}
		if err == nil && d == 0 && (text == "" || text[len(text)-1] != '0') {
			t.Fatalf("ParseSeconds(%q) is 0 without an error", text)
		}
	})
}

func TestResolve(t *testing.T) {
	const fallback = 30 * time.Second
	cached := Period{Length: 60 * time.Second, Source: SourceDomain}
	says := func(text string) stated { return stated{Read: true, Text: text} }
	silent, unread := stated{Read: true}, stated{Text: "99"}
	for _, c := range []struct {
		name     string
		cached   Period
		domain   stated
		launcher stated
		want     Period
	}{
		{"the domain wins", Period{}, says("10"), says("20"), Period{10 * time.Second, SourceDomain}},
		{"0 is stated, too", Period{}, says("0"), says("20"), Period{0, SourceDomain}},
		{"the launcher where the domain states none", Period{}, silent, says("20"), Period{20 * time.Second, SourceLauncher}},
		{"the default where nobody states any", cached, silent, silent, Period{fallback, SourceDefault}},
		{"the cached value while its source cannot be read", cached, unread, says("20"), cached},
		{"another source's cached value does not", Period{20 * time.Second, SourceLauncher}, unread, says("25"), Period{25 * time.Second, SourceLauncher}},
		{"a lost vm.json leaves the cached value", Period{20 * time.Second, SourceLauncher}, silent, unread, Period{20 * time.Second, SourceLauncher}},
	} {
		if got := resolve(c.cached, fallback, [...]stated{byVMI: silent, byDomain: c.domain, byLauncher: c.launcher}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWholeSecondsNeverSaysLess(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second: 1, 1500 * time.Millisecond: 2, MaxPeriod: int64(MaxPeriod / time.Second)} {
		if got := WholeSeconds(d); got != want {
			t.Errorf("WholeSeconds(%v) = %d, want %d", d, got, want)
		}
	}
}

func TestMonoNeverOverflows(t *testing.T) {
	if got := Mono(5).Add(MaxPeriod); got != Mono(5+MaxPeriod) {
		t.Errorf("5+MaxPeriod = %d", got)
	}
	if got := (Never - 1).Add(time.Second); got != Never {
		t.Errorf("Never-1+1s = %d, want Never", got)
	}
}

func TestDomainNames(t *testing.T) {
	for domain, ok := range map[string]bool{
		"ns_vm": true, "ns_vm.with.dots": true, "n-1_v-2": true,
		"": false, "vm": false, "_vm": false, "ns_": false, "ns_vm_x": false, "Ns_vm": false,
		"ns_../etc": false, "ns_-vm": false, "ns_vm-": false, "n.s_vm": false, "ns_vm\n": false, "ns_v\x00m": false,
	} {
		ns, name, got := SplitDomainName(domain)
		if got != ok || got && DomainName(ns, name) != domain {
			t.Errorf("SplitDomainName(%q) = %q, %q, %v; want %v", domain, ns, name, got, ok)
		}
	}
}

func TestBeginFixesTheTimesOnce(t *testing.T) {
	r, _ := guarded(4 * time.Second)
	wall := time.Date(2026, 1, 2, 3, 4, 5, 678_912_345, time.FixedZone("x", 3600))
	r.begin(LauncherSignal, t0, wall, false)
	s := r.Shutdown
	if s.Start != t0 || s.Deadline != at(4) {
		t.Errorf("from %v to %v", s.Start, s.Deadline)
	}
	if got := s.StartedAt.Format(time.RFC3339Nano); got != "2026-01-02T02:04:05.678Z" {
		t.Errorf("startedAt %s", got)
	}
	if got := s.DeadlineAt.Sub(s.StartedAt); got != 4*time.Second {
		t.Errorf("deadline %v after the start", got)
	}
}

func TestShortenOnlyMovesForward(t *testing.T) {
	r, _ := begun(t, 30*time.Second)
	if r.shorten(at(40)); r.Shutdown.Deadline != at(30) {
		t.Errorf("later: %v", r.Shutdown.Deadline.Sub(t0))
	}
	if r.shorten(at(5)); r.Shutdown.Deadline != at(5) {
		t.Errorf("earlier: %v", r.Shutdown.Deadline.Sub(t0))
	}
	if got := r.Shutdown.DeadlineAt.Sub(r.Shutdown.StartedAt); got != 5*time.Second {
		t.Errorf("on the wall clock %v after the start", got)
	}
}

func TestPhaseFollowsFromTheClock(t *testing.T) {
	r, _ := guarded(time.Second)
	if r.Phase(Never) != Running {
		t.Error("without a shutdown:", r.Phase(Never))
	}
	r, _ = begun(t, time.Second)
	if r.Phase(at(1)-1) != ShuttingDown || r.Phase(at(1)) != Destroying {
		t.Error("around the deadline:", r.Phase(at(1)-1), r.Phase(at(1)))
	}
}

func TestAUIDIsFitForAPathOrIsNone(t *testing.T) {
	for _, uid := range []string{"3f2504e0-4f89-11d3-9a0c-0305e82c3301", "1d4b8c0e9a6f5e3b", "A", strings.Repeat("a", 64)} {
		if !IsUID(uid) {
			t.Errorf("%q is none", uid)
		}
	}
	for _, uid := range []string{"", ".", "..", "a/b", "a b", "a\x00", "a\x10", "a\n", "ä", "a_b", strings.Repeat("a", 65)} {
		if IsUID(uid) {
			t.Errorf("%q is one", uid)
		}
	}
}

func TestTheSameInodeInAnotherPodIsAnotherLauncher(t *testing.T) {
	was := Holder{PID: 1, Device: 41, File: 77, Pod: "pod-1"}
	for name, c := range map[string]struct {
		now  Holder
		same bool
	}{
		"itself":         {was, true},
		"another pod":    {Holder{PID: 1, Device: 41, File: 77, Pod: "copy"}, false},
		"another device": {Holder{PID: 1, Device: 42, File: 77, Pod: "pod-1"}, false},
		"another file":   {Holder{PID: 1, Device: 41, File: 78, Pod: "pod-1"}, false},
	} {
		if was.sameFile(c.now) != c.same {
			t.Errorf("%s: %v, want %v", name, !c.same, c.same)
		}
	}
	if old := (Holder{File: 77}); !old.sameFile(was) {
		t.Error("the launcher that an older agent recorded is not known")
	}
}

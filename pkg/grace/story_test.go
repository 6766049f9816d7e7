package grace

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew, from what is decided now")

// TestStories plays testdata/*.txt. A story has a title, what is given, and then lines
// "TIME what happens". The indented lines below each show the results: "-" is a decision
// that is carried out, with its rule in brackets; "." is what the world does. The test
// compares them, or rewrites them with -update.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			switch {
			case got == string(want):
			case *update:
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s; go test ./pkg/grace -run TestStories -update writes it anew", firstDifference(string(want), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(the end)", "(the end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d:\n want %s\n got  %s", i+1, a, b)
		}
	}
	return "no difference"
}

// play returns the story with what comes of each of its lines.
func play(t *testing.T, text string) string {
	t.Helper()
	s := newStage(t)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, " "):
			continue // it is written anew
		case strings.HasPrefix(line, "given "):
			s.perform(strings.TrimPrefix(line, "given "))
		case line != "" && line[0] >= '0' && line[0] <= '9':
			when, what, _ := strings.Cut(words, " ")
			after, err := time.ParseDuration(when)
			if err != nil {
				t.Fatal(err)
			}
			s.playUntil(t0.Add(after))
			fmt.Fprintln(&s.out, line)
			s.perform(what)
			s.see()
			s.decide()
			continue
		}
		fmt.Fprintln(&s.out, line)
	}
	return s.out.String()
}

// stage is the world of a story: its true state, and what the agent of this node knows of
// it.
type stage struct {
	t   *testing.T
	out strings.Builder
	now Mono

	policy Policy
	agent  *VM
	disk   *Record
	wake   Mono
	last   string
	events []event
	truth
}

// truth is the true state of the world.
type truth struct {
	instance   Instance // of the domain; zero: there is none
	instances  int
	ended      bool
	end        End
	power      Power
	guestAgent string // "", "answers", "hangs", "refuses"
	paused     string // by what
	off        time.Duration
	deaf       bool
	agentOnly  bool // it hears its agent alone
	unkillable bool
	exits      time.Duration // how long its process is exiting
	exiting    bool
	stays      Power // what a guest that has powered off is, where its process goes on
	noProcess  bool
	diskState  string // "", "full", "hangs"
	launcher   launcher
	shims      int
	cluster    bool
	vmi        VMI
	answer     Fate
	apiDown    bool
	pod        string
	podKill    Mono // Never: it is not being deleted
	podDeleted Mono
	podGrace   time.Duration // as its last deletion says
	podDone    bool
	allowance  time.Duration // its shutdown may be held for so long; 0: not at all
	reason     Cause
	migration  Migration
	arrival    Arrival
	still      bool   // the watches show nothing new
	grace      string // seconds, as the launcher states it
	boots      int
	down       bool // no agent runs
	begun      Mono // when the agent started
	node       NodeShutdownTime
	asked      bool // the guest has heard a request
}

type launcher struct {
	dir        bool
	uid        string
	shim       int // counts shims; 0: none was ever there
	alive      bool
	trigger    bool
	triggerUID string
	triggers   int // counts them
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, now: t0, policy: policy, wake: Never}
	s.policy.BootID, s.policy.DefaultPeriod = "boot-0", 30*time.Second
	s.truth = truth{off: 8 * time.Second, power: PowerOn, podKill: Never, grace: "30"}
	s.start()
	return s
}

// say writes a line of the results.
func (s *stage) say(mark, format string, args ...any) {
	fmt.Fprintf(&s.out, "  %9.3fs %s %s\n", s.now.Sub(t0).Seconds(), mark, fmt.Sprintf(format, args...))
}

func (s *stage) clock(m Mono) string {
	if m == Never {
		return "something happens"
	}
	return fmt.Sprintf("%.3fs", m.Sub(t0).Seconds())
}

func (s *stage) after(d time.Duration, do func()) {
	s.events = append(s.events, event{s.now.Add(d), do})
}

// playUntil runs the world and the agent until end.
func (s *stage) playUntil(end Mono) {
	for range 10_000 {
		slices.SortStableFunc(s.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
		next := s.wake
		if len(s.events) > 0 {
			next = min(next, s.events[0].at)
		}
		if next >= end {
			s.now = end
			return
		}
		s.now = max(s.now, next)
		if len(s.events) > 0 && s.events[0].at <= s.now {
			e := s.events[0]
			s.events = s.events[1:]
			e.do()
			s.see()
		}
		s.decide()
	}
	s.t.Fatal("the story does not end")
}

// decide asks the core until it waits.
func (s *stage) decide() {
	if s.down {
		s.wake = Never
		return
	}
	for range 50 {
		d := s.agent.Next(s.now)
		if d.Do == Wait {
			s.wake = d.At
			if line := fmt.Sprintf("wait until %s [%s]", s.clock(d.At), d.Rule); line != s.last {
				s.last = line
				s.say("-", "%s", line)
			}
			return
		}
		if s.quietly(d) {
			continue
		}
		s.last = ""
		s.do(d)
	}
	s.t.Fatal("the rules did not converge")
}

// perform carries out what a line says.
func (s *stage) perform(what string) {
	verb, rest, _ := strings.Cut(what, ": ")
	if f, ok := happenings[what]; ok {
		f(s)
	} else if f, ok := parameters[verb]; ok {
		f(s, rest)
	} else {
		s.t.Fatalf("nothing is known of %q", what)
	}
}

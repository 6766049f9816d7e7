package grace

import (
	"testing"
	"time"
)

func TestAProcessOfANodeThatSleptIsKnownByItsStart(t *testing.T) {
	const slept = 3 * time.Hour
	ticks := func(m Mono) uint64 { return uint64(m) / uint64(tick) }
	for name, c := range map[string]struct {
		start    Mono // on a clock that counts suspended time
		asleep   time.Duration
		restored bool
		want     bool // it is the instance that is shut down
	}{
		"started before, never asleep":                     {start: at(-5), want: true},
		"started after, never asleep":                      {start: at(5)},
		"started before, after a sleep":                    {start: at(-5).Add(slept), asleep: slept, want: true},
		"started after, after a sleep":                     {start: at(5).Add(slept), asleep: slept},
		"begun by another agent: in doubt it is another's": {start: at(-5).Add(slept), asleep: slept, restored: true},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: a shutdown whose process was not known when it began.
			v := inPhase(t, ShuttingDown)
			p := policy
			p.Asleep = c.asleep
			v.policy, v.obs.Restored = &p, c.restored
			v.rec.Instance = Instance{UUID: "u"}
			// When: it is identified.
			v.SeeDomain(Domain{Instance: Instance{UUID: "u", PID: 7, Start: ticks(c.start)}, Power: PowerOn}, at(1))
			// Then.
			if v.Gone() == c.want {
				t.Errorf("gone: %v, want it to be this instance: %v", v.Gone(), c.want)
			}
			if c.want {
				if d := v.Next(at(1)); d.Do != Identify {
					t.Errorf("%s by %q", d.Do, d.Rule)
				}
			}
		})
	}
}

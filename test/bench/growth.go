package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
)

// The smallest and the largest number of VMs are compared, and so measured in
// some rounds; what lies between is for the picture.
const (
	fewest, most = 10, 1000
	growthRounds = 3
)

// growth is row d: the agent on a simulated hypervisor, beside
// as many timers of the floor.
func growth(b *bench) []figure {
	trials := map[int][]trial{0: {b.simulate(0)}}
	for round := range growthRounds {
		for _, vms := range []int{fewest, 30, 100, 300, most} {
			if round == 0 || vms == fewest || vms == most {
				trials[vms] = append(trials[vms], b.simulate(vms))
			}
		}
	}
	rest := trials[0][0].cpu // what an agent without VMs needs
	b.must(b.picture(points(trials, rest)))

	line := func(what, target string, u unit, value func(trial) []float64) figure {
		f := figure{row: "d", what: what, target: target, unit: u}
		for _, t := range trials[most] {
			v := value(t)
			f.ours = append(f.ours, v[0])
			if len(v) > 1 {
				f.floor = append(f.floor, v[1])
			}
		}
		return f
	}
	overshoot := func(what, target string, q float64) figure {
		return line(fmt.Sprintf("%d simulated VMs, deadlines at random over %v, %d rounds: overshoot, %s", most, b.window, growthRounds, what), target, seconds,
			func(t trial) []float64 { return []float64{quantile(t.late, q), quantile(t.floor, q)} })
	}
	perVM := line(fmt.Sprintf("CPU per VM with %d VMs, from its launcher's SIGTERM to its end; peer: with %d", most, fewest), "≤ 1.3 × with 10", seconds,
		func(t trial) []float64 { return []float64{(t.cpu - rest) / most} })
	perVM.peerName = strconv.Itoa(fewest) + " VMs"
	for _, t := range trials[fewest] {
		perVM.peer = append(perVM.peer, (t.cpu-rest)/fewest)
	}
	fixed := figure{row: "d", what: "not in it: CPU of an agent without VMs, of a core", unit: percent, ours: []float64{rest / b.span().Seconds()}}
	return []figure{overshoot("p50", "", 0.5), overshoot("p99", "≤ 5 ms", 0.99), overshoot("max", "", 1), perVM, fixed}
}

// point is one size in the picture, over all its rounds: times in seconds.
type point struct {
	VMs      int     `json:"vms"`
	P50      float64 `json:"overshootP50"`
	P99      float64 `json:"overshootP99"`
	FloorP50 float64 `json:"floorP50"`
	FloorP99 float64 `json:"floorP99"`
	CPU      float64 `json:"cpuPerVM"`
}

func points(trials map[int][]trial, rest float64) []point {
	var all []point
	for _, vms := range slices.Sorted(maps.Keys(trials)) {
		var late, floor, cpu []float64
		for _, t := range trials[vms] {
			late, floor, cpu = append(late, t.late...), append(floor, t.floor...), append(cpu, (t.cpu-rest)/float64(vms))
		}
		if vms > 0 {
			all = append(all, point{vms, quantile(late, 0.5), quantile(late, 0.99), quantile(floor, 0.5), quantile(floor, 0.99), median(cpu)})
		}
	}
	return all
}

// picture writes what hack/plot draws.
func (b *bench) picture(all []point) error {
	if b.growth == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return fmt.Errorf("figures of the picture: %w", err)
	}
	return os.WriteFile(b.growth, append(text, '\n'), 0o644)
}

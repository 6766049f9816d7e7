package taints

import "time"

// preferNoSchedule is ignored: the effect keeps no pod away.
const preferNoSchedule = "PreferNoSchedule"

// Taint is a node's taint. Added is its timeAdded, zero if missing.
type Taint struct {
	Key, Effect string
	Added       time.Time
}

// TaintID identifies a taint: key and effect are unique on a node.
type TaintID struct{ Node, Key, Effect string }

func (i TaintID) String() string { return i.Key + ":" + i.Effect }

// Node has the properties of a node that decisions depend on.
type Node struct {
	Name   string
	Ready  bool
	Taints []Taint
}

// Clocks holds the start times of the taints that have an option. The caller has to
// delete the clock of a taint that was removed between two calls of Next, even if it was
// added again.
type Clocks map[TaintID]time.Time

// updateClocks returns the clocks of the current taints: timeAdded, else the time of the
// first call with the taint.
func (p *Policy) updateClocks(before Clocks, nodes map[string]Node, now time.Time) Clocks {
	clocks := Clocks{}
	for _, n := range nodes {
		for _, t := range n.Taints {
			if _, counts := p.option(t.Key); !counts || t.Effect == preferNoSchedule {
				continue
			}
			id := TaintID{n.Name, t.Key, t.Effect}
			switch firstSeen, known := before[id]; {
			case !t.Added.IsZero():
				clocks[id] = t.Added
			case known:
				clocks[id] = firstSeen
			default:
				clocks[id] = now
			}
		}
	}
	return clocks
}

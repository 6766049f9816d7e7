package replacement

import "time"

// preferNoSchedule keeps no pod away: it does not count.
const preferNoSchedule = "PreferNoSchedule"

// Taint of a node. Added is zero where the taint does not say it.
type Taint struct {
	Key, Effect string
	Added       time.Time
}

// TaintID names a taint: there is one of each key and effect on a node.
type TaintID struct{ Node, Key, Effect string }

func (i TaintID) String() string { return i.Key + ":" + i.Effect }

// Node is what counts of a node.
type Node struct {
	Name   string
	Ready  bool
	Taints []Taint
}

// Clocks tell since when each taint that counts is there. Who sees that a taint was
// removed between two calls of Next deletes its clock, though it may be there again.
type Clocks map[TaintID]time.Time

// run returns the clocks of the taints that are there now. A taint that says
// when it was added is believed; another one is there since it was first seen.
func (p *Policy) run(before Clocks, nodes map[string]Node, now time.Time) Clocks {
	clocks := Clocks{}
	for _, n := range nodes {
		for _, t := range n.Taints {
			if _, counts := p.option(t.Key); !counts || t.Effect == preferNoSchedule {
				continue
			}
			id := TaintID{n.Name, t.Key, t.Effect}
			switch seen, known := before[id]; {
			case !t.Added.IsZero():
				clocks[id] = t.Added
			case known:
				clocks[id] = seen
			default:
				clocks[id] = now
			}
		}
	}
	return clocks
}

package migrate

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxHandshakes bounds the connections that have no certificate yet, and
	// maxHandshakesPerHost those of one address.
	maxHandshakes        = 64
	maxHandshakesPerHost = 8
	// maxPerNode bounds the connections of one node after its certificate.
	maxPerNode = 64
	// maxControls bounds the control connections of one migration: a source connects again
	// before this agent notices that the network has cut the former connection.
	maxControls = 2
	// hostBits is the part of an IPv6 address that identifies a host: the host chooses the
	// rest.
	hostBits = 64
)

// door limits the connections of other nodes. If too many have no certificate yet, a new
// one displaces an older one. So nobody keeps others out by connecting and staying silent.
// After its certificate a connection counts for its node.
type door struct {
	mu      sync.Mutex
	callers []*caller      // before their certificate, oldest first
	nodes   map[string]int // connections by node
}

// caller is a connection without a certificate yet.
type caller struct {
	host      string
	conn      net.Conn
	displaced bool
}

// enter admits a connection without a certificate. It may close an older one: of the same
// address if that has too many, otherwise of the address that has the most.
func (d *door) enter(c net.Conn) *caller {
	is := &caller{host: hostOf(c.RemoteAddr()), conn: c}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.callers = append(d.callers, is)
	of := map[string]int{}
	most := is.host
	for _, other := range d.callers {
		if of[other.host]++; of[other.host] > of[most] {
			most = other.host
		}
	}
	switch {
	case of[is.host] > maxHandshakesPerHost:
		d.displace(is.host)
	case len(d.callers) > maxHandshakes:
		d.displace(most)
	}
	return is
}

// displace closes the oldest connection of an address. The caller holds the lock.
func (d *door) displace(host string) {
	i := slices.IndexFunc(d.callers, func(c *caller) bool { return c.host == host })
	d.callers[i].displaced = true
	_ = d.callers[i].conn.Close() // its handshake fails
	d.callers = slices.Delete(d.callers, i, i+1)
}

// leave removes a connection from the callers. It reports whether the connection was closed
// for a newer one.
func (d *door) leave(c *caller) (displaced bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.callers = slices.DeleteFunc(d.callers, func(other *caller) bool { return other == c })
	return c.displaced
}

// take reserves one of a node's connections, if one is left. giveBack releases it.
func (d *door) take(node string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes == nil {
		d.nodes = map[string]int{}
	}
	if d.nodes[node] >= maxPerNode {
		return false
	}
	d.nodes[node]++
	return true
}

func (d *door) giveBack(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes[node]--; d.nodes[node] == 0 {
		delete(d.nodes, node)
	}
}

// hostOf returns what identifies the host of an address.
func hostOf(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	ip := at.Addr().Unmap()
	if ip.Is6() {
		if prefix, err := ip.WithZone("").Prefix(hostBits); err == nil {
			return prefix.String()
		}
	}
	return ip.String()
}

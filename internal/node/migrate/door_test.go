package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// underWay starts a migration that runs until the test ends.
func underWay(t *testing.T) *world {
	t.Helper()
	w := given(t)
	w.sends = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	w.start()
	w.eventually("it is under way", func() bool { return w.m.Status.Phase == kubevirt.MigrationRunning })
	return w
}

// tcp connects to a node's agent without a certificate.
func (w *world) tcp(node string) net.Conn {
	w.t.Helper()
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(w.t.Context(), "tcp", w.addrs[node])
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Given more silent connections than there are places, all from the node's address. When
// the node connects, it is served at once, and the closed connections are counted.
func TestSilentConnectionsKeepNoNodeOut(t *testing.T) {
	w := underWay(t)
	for range 3 * maxHandshakes {
		w.tcp("b")
	}
	for range 3 {
		began := time.Now()
		l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl, UUID: guestUUID})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if took := time.Since(began); took >= handshakeTimeout {
			t.Errorf("served after %v", took)
		}
	}
	w.eventually("they are counted", func() bool { return w.refused["tls"] >= 3*maxHandshakes-maxHandshakesPerHost })
}

// Given more connections of one node than it may have. Another node is answered, and the
// migration keeps the last two.
func TestConnectionsOfOneNodeKeepNoOtherOut(t *testing.T) {
	w := underWay(t)
	who, open := w.ca.node(t, "a"), []*link{}
	for range 2 * maxPerNode {
		l, err := dial(t.Context(), who, "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl, UUID: guestUUID})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
		defer l.Close()
	}
	if _, err := dial(t.Context(), w.ca.node(t, "c"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl}); err == nil || !strings.Contains(err.Error(), "it refuses") {
		t.Errorf("another node is not answered: %v", err)
	}
	for _, l := range open[:len(open)-maxControls] {
		_ = l.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, l); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("an old connection of the migration is open: %v", err)
		}
	}
}

// pipe is a connection from one address.
type pipe struct {
	net.Conn

	from   string
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return address(p.from) }
func (p *pipe) Close() error         { p.closed = true; return nil }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func TestTheOldestOfTheBusiestAddressMakesRoom(t *testing.T) {
	d := &door{}
	enter := func(from string) (*pipe, *caller) {
		p := &pipe{from: from}
		return p, d.enter(p)
	}
	var first []*pipe
	for i := range maxHandshakesPerHost {
		p, _ := enter(fmt.Sprintf("[2001:db8::%x]:%d", i+1, i+1)) // one host has all addresses of its network
		first = append(first, p)
	}
	for _, p := range first {
		if p.closed {
			t.Fatal("closed before there are too many")
		}
	}
	_, ninth := enter("[2001:db8::ffff]:1")
	if !first[0].closed || first[1].closed {
		t.Error("a ninth of one address closes another than the oldest")
	}
	var others []*pipe
	for i := range maxHandshakes - maxHandshakesPerHost {
		p, _ := enter(fmt.Sprintf("192.0.2.%d:1", i+1))
		others = append(others, p)
	}
	if first[1].closed {
		t.Fatal("closed before there are too many")
	}
	for i := range 3 {
		p, c := enter(fmt.Sprintf("198.51.100.%d:1", i+1))
		if !first[1+i].closed || first[2+i].closed || p.closed {
			t.Error("room is made by another than the oldest of the address that has the most")
		}
		if d.leave(c) {
			t.Error("a connection that has left was closed for another")
		}
		enter(fmt.Sprintf("203.0.113.%d:1", i+1)) // in its place
	}
	for _, p := range others {
		if p.closed {
			t.Error("an address with one connection makes room")
		}
	}
	for range maxHandshakesPerHost {
		enter("[2001:db8::fffe]:1")
	}
	if !d.leave(ninth) {
		t.Error("a connection that was closed for a newer one does not say so")
	}
	if len(d.callers) > maxHandshakes {
		t.Errorf("%d connections without a certificate", len(d.callers))
	}
}

func TestANodeHasABoundOfConnections(t *testing.T) {
	d := &door{}
	for i := range maxPerNode {
		if !d.take("a") {
			t.Fatalf("%d connections are too many", i+1)
		}
	}
	if d.take("a") || !d.take("b") {
		t.Error("the bound is not one of each node")
	}
	d.giveBack("b")
	d.giveBack("a")
	if !d.take("a") || d.take("a") {
		t.Error("what is given back is not there again")
	}
	for range maxPerNode {
		d.giveBack("a")
	}
	if len(d.nodes) > 0 {
		t.Errorf("nodes without a connection are kept: %v", d.nodes)
	}
}

// A silent connection ends soon, in the TLS handshake.
func TestASilentConnectionEndsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		n := New(Config{Identity: newAuthority(t).node(t, "b"), Meter: host{w, "b"}, Log: slog.New(slog.DiscardHandler)})
		ours, theirs := net.Pipe()
		defer theirs.Close()
		began := time.Now()
		n.handleConnection(t.Context(), ours, n.door.enter(ours))
		if took := time.Since(began); took != handshakeTimeout || w.refused["tls"] != 1 || len(n.door.callers) > 0 {
			t.Errorf("ended after %v, counted %v, %d left", took, w.refused, len(n.door.callers))
		}
	})
}

func TestRefusalsAreLoggedOnceAMinuteWithTheirNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log, r := slog.New(slog.NewTextHandler(&text, nil)), &refusals{}
		for range 1000 {
			r.warn(log, refusedBefore, "192.0.2.1:1", errors.New("x"))
		}
		r.warn(log, refusedAfter, "a", errors.New("x"))
		time.Sleep(refusalInterval - 1) //nolint:forbidigo // virtual time
		r.warn(log, refusedBefore, "192.0.2.1:1", errors.New("x"))
		if n := strings.Count(text.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want one of each kind:\n%s", n, text.String())
		}
		time.Sleep(time.Nanosecond) //nolint:forbidigo // virtual time
		r.warn(log, refusedBefore, "192.0.2.1:1", errors.New("x"))
		if n := strings.Count(text.String(), "\n"); n != 3 || !strings.Contains(text.String(), "leftOut=1000") {
			t.Errorf("%d lines, want the number of those left out:\n%s", n, text.String())
		}
	})
}

// Formerly 30,000 messages at once made the agent look at the guest as often.
func TestMessagesAtAHighRateEndTheConnection(t *testing.T) {
	w := underWay(t)
	w.mu.Lock()
	before := w.looks["b"]
	w.mu.Unlock()
	l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl, UUID: guestUUID})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(io.Discard, l) })
	began, sent := time.Now(), 0
	for range 30000 {
		if l.writeLine(message{Query: true}) != nil {
			break
		}
		sent++
	}
	reading.Wait()
	// The second one is the node's own connection, if it says something meanwhile.
	w.eventually("it is counted", func() bool { return w.refused["rate"] >= 1 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if looks := w.looks["b"] - before; looks > 5+int(time.Since(began)/tick) {
		t.Errorf("%d messages had the agent look %d times", sent, looks)
	}
}

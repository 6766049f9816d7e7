package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// make demo-drain runs the demo itself. These tests check what it prints.

func TestTheTableTellsWhatIsAmiss(t *testing.T) {
	good := result{from: "node-a", to: "node-b", drained: 9 * time.Second, before: 10, left: 14, after: 14, boots: 1, stood: "120"}
	if text, ok := good.table(); !ok || !strings.Contains(text, "vm-example   node-a   node-b   9.0 s        120 ms        14 s            14 s           1       0") {
		t.Errorf("ok %v in\n%s", ok, text)
	}
	bad := good
	bad.exit, bad.after, bad.boots, bad.asked = 1, 2, 2, 1
	if text, ok := bad.table(); ok || !strings.Contains(text, "NO: kubectl drain: exit status 1, its uptime did not go on, booted again, asked to shut down") {
		t.Errorf("ok %v in\n%s", ok, text)
	}
}

func TestTheConsolesAreReadOnBothNodes(t *testing.T) {
	g := &guest{screen: &screen{w: io.Discard}, uptime: map[string]span{}}
	console := &speaker{say: func(line string) { g.says("node-a", line) }}
	for _, part := range []string{"Linux\r\nvmgrace-", "guest: up\r\nvmgrace-guest: 2 s since it booted\r\n", "vmgrace-guest: 3 s since it booted\r\nvmgrace-guest: 4 s"} {
		if _, err := console.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	g.says("node-b", "vmgrace-guest: press 1")
	if s, ok := g.on("node-a"); !ok || s != (span{2, 3}) || g.boots != 1 || g.asked != 1 {
		t.Errorf("%+v, %v, booted %d times, asked %d times", s, ok, g.boots, g.asked)
	}
}

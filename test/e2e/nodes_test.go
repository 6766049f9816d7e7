package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// Given 50 VMIs of one node. When they are created, changed and deleted, then the other
// node's agent receives less than the size of one VMI, as the kernel counts at its sockets.
// Otherwise every agent would receive all VMIs of the cluster.
func TestNoByteAboutAVMIArrivesAtAnotherNode(t *testing.T) {
	w := given(t)
	const vmis, size = 50, 4096
	padding := strings.Repeat("x", size)
	var text strings.Builder
	for i := range vmis {
		vmi := w.example("vmi.yaml", "example", fmt.Sprintf("many-%d", i), "namespace: default", onNode(w.a.Name))
		text.WriteString(strings.Replace(vmi, "metadata:\n", "metadata:\n  annotations: {padding: "+padding+"}\n", 1) + "\n---\n")
	}
	a, b := w.received(w.a), w.received(w.b)
	begin := time.Now()
	if _, err := w.TryKubectl(t.Context(), text.String(), "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "annotate", "vmi", "-n", namespace, "--all", "again=yes")
	w.delete("vmi", "--all")
	var atA, atB int
	node.Eventually(t, soon, func() bool { atA = w.received(w.a) - a; return atA > 3*vmis*size }, "%s does not hear of its VMIs", w.a.Name)
	atB = w.received(w.b) - b
	w.step("%d VMIs of %s made, changed and deleted in %.1f s: %d bytes to its agent, %d to that of %s",
		vmis, w.a.Name, time.Since(begin).Seconds(), atA, atB, w.b.Name)
	// Bookmarks and answers to pings are less than a single VMI.
	if atB < 0 || atB >= size {
		t.Errorf("the agent of %s has received %d bytes", w.b.Name, atB)
	}
}

var receivedBytes = regexp.MustCompile(`bytes_received:(\d+)`)

// received returns the bytes that the agent's connections have received.
func (w *world) received(n *cluster.Node) int {
	w.Helper()
	sum := 0
	found := receivedBytes.FindAllStringSubmatch(n.Run(w, `ss -tinpH | grep -A1 '"node-agent"'`), -1)
	for _, m := range found {
		bytes, err := strconv.Atoi(m[1])
		if err != nil {
			w.Fatal(err)
		}
		sum += bytes
	}
	if len(found) == 0 {
		w.Fatalf("the agent of %s has no connection", n.Name)
	}
	return sum
}

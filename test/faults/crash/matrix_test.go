package crash

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestAnAgentKilledAtAnyStepKeepsTheOneGracePeriod(t *testing.T) {
	n, m := node.New(t), newMatrix(t)
	for _, p := range paths() {
		m.walk(t, p, func(t *testing.T, point string) *crash {
			t.Helper()
			return m.prepare(t, n, p, point)
		}, (*crash).begin)
	}
	m.complete(t)
}

// matrix is what a test learns about all points.
type matrix struct {
	binary           string
	signals          *node.Signals
	passed, declared map[string]bool
	killed           int
	worst            time.Duration
}

// newMatrix returns a matrix with the binary of an agent that has the points.
func newMatrix(t *testing.T) *matrix {
	t.Helper()
	m := &matrix{binary: node.WithFailpoints(t), signals: node.ListSignals(t), passed: map[string]bool{}, declared: map[string]bool{}}
	for _, p := range append(paths(), deletion(), nodeShutdown()) {
		for _, name := range p.points {
			m.declared[name] = true
		}
	}
	return m
}

// walk kills an agent at each point of a path, one round at a time.
func (m *matrix) walk(t *testing.T, p path, prepare func(*testing.T, string) *crash, begin func(*crash)) {
	t.Helper()
	for round := range slices.Chunk(p.points, p.round) {
		t.Run(fmt.Sprintf("%s: %s to %s", p.name, round[0], round[len(round)-1]), func(t *testing.T) {
			crashes := make([]*crash, len(round))
			for i, point := range round {
				crashes[i] = prepare(t, point)
			}
			for _, c := range crashes {
				begin(c)
			}
			node.Eventually(t, time.Minute, func() bool { return all(crashes, (*crash).over) }, "not all of %v end", round)
			for _, c := range crashes {
				c.check()
				for _, name := range c.passed() {
					m.passed[name] = true
				}
				m.killed++
				m.worst = max(m.worst, c.late)
			}
		})
	}
}

// complete checks that no agent has passed a point at which no test kills it.
func (m *matrix) complete(t *testing.T) {
	t.Helper()
	for name := range m.passed {
		if !m.declared[name] {
			t.Errorf("the agent passes %s, at which it was never killed", name)
		}
	}
	t.Logf("killed %d times; latest signal after a deadline that was still to come: %v", m.killed, m.worst)
}

// all reports whether f is true for every crash. It calls f for each one, even after a
// false: f takes a crash one step further.
func all(crashes []*crash, f func(*crash) bool) bool {
	yes := true
	for _, c := range crashes {
		yes = f(c) && yes
	}
	return yes
}

// crash is one VM whose agent dies at one point.
type crash struct {
	*node.VM
	path
	t       *testing.T
	node    *node.Node
	signals *node.Signals
	agent   *node.Agent
	machine *logind.Machine // the machine of a node shutdown
	name    string          // the unique name of the VM
	point   string
	log     string

	from, to  time.Time // the cause came between them
	killed    bool
	returned  time.Time // when the last agent was started
	ready     time.Time // when it was ready
	remembers bool      // the grace period was on disk when the agent died
	deadlines map[grace.Mono]bool
	holds     map[grace.Hold]bool // holds on disk that had a reason
	told      map[string]bool     // deadlines in status.json
	late      time.Duration
}

func (m *matrix) crash(t *testing.T, n *node.Node, p path, a *node.Agent, point string) *crash {
	t.Helper()
	a.Path = m.binary
	p.grace = cmp.Or(p.grace, crashGrace)
	dir := filepath.Dir(a.StateDir)
	return &crash{t: t, node: n, signals: m.signals, path: p, point: point, agent: a, name: filepath.Base(dir), log: filepath.Join(dir, "points"),
		deadlines: map[grace.Mono]bool{}, holds: map[grace.Hold]bool{}, told: map[string]bool{}}
}

func (m *matrix) prepare(t *testing.T, n *node.Node, p path, point string) *crash {
	t.Helper()
	c := m.crash(t, n, p, n.Agent(t, append([]string{"--shutdown-retry-interval=1s"}, p.args...)...), point)
	spec := p.spec
	spec.Namespace, spec.Name = "vmgrace-crash", c.name
	if !p.back {
		c.arm(filepath.Join(c.agent.LaunchersDir, spec.Namespace+"_"+spec.Name, cmp.Or(p.armedBy, "shutdown")))
	}
	c.agent.Start(t)
	c.VM = c.launch(spec)
	if p.armedBy != "" {
		node.Eventually(t, soon, func() bool { _, dead := c.agent.Exited(0); return dead }, "%s: the agent does not die", point)
		c.revive()
		c.remembers = true // the next agent runs when the trigger comes
	}
	waitGuarded(t, c.VM)
	if p.before != nil {
		p.before(c)
	}
	return c
}

// launch starts the guest with its shim.
func (c *crash) launch(spec node.Spec) *node.VM {
	period := "--grace-period=" + c.grace.String()
	if c.inside {
		return c.agent.LaunchInside(c.t, spec, period)
	}
	g := c.node.Boot(c.t, spec)
	if c.hidden {
		for _, file := range []string{g.Domain + ".pid", g.Domain + ".xml"} {
			if err := os.Remove(filepath.Join(c.node.RunDir(), file)); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return c.agent.VM(c.t, g, period)
}

// arm makes the next agent die at the point, once this trigger file has existed.
func (c *crash) arm(trigger string) {
	c.agent.Env = []string{"VMGRACE_FAILPOINT=" + c.point, "VMGRACE_FAILPOINT_LOG=" + c.log, "VMGRACE_FAILPOINT_ARMED=" + trigger}
}

func (c *crash) begin() {
	c.from = c.SignalShim(c.t)
	c.to = time.Now()
	if !c.back && c.after == nil {
		return
	}
	c.WaitBegun(c.t)
	if c.after != nil {
		c.after(c)
		return
	}
	c.agent.Kill()
	if c.point == "open.unlink" { // removes what a killed writer has left behind
		if err := os.WriteFile(filepath.Join(c.agent.StateDir, ".tmp-1"), nil, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	c.sample()
	c.arm(c.Launcher.Path("shutdown"))
	c.agent.Launch(c.t)
}

// over takes the VM one step further: it revives the agent that has died. It reports
// whether the VM has ended and all its traces are gone.
func (c *crash) over() bool {
	c.sample()
	if _, dead := c.agent.Exited(0); dead && !c.killed {
		c.revive()
		c.remembers = len(c.deadlines) > 0
	}
	if c.killed && c.ready.IsZero() && c.agent.Ready() {
		c.ready = time.Now()
	}
	_, there := recorded(c.t, c.agent)[c.Domain]
	return c.killed && !c.ready.IsZero() && c.Gone() && c.Launcher.Status().Phase == "Stopped" && !c.Launcher.Has("shutdown") && !there
}

// revive starts the agent again after its death, without a point.
func (c *crash) revive() {
	c.t.Helper()
	if code, _ := c.agent.Exited(0); code != 128+int(syscall.SIGKILL) {
		c.t.Fatalf("%s: the agent ended with status %d\n%s", c.point, code, c.agent.Log())
	}
	c.killed = true
	c.sample()
	c.agent.Env = nil
	c.returned = time.Now()
	c.agent.Launch(c.t)
}

// sample notes the deadline and the hold on the disk, and the deadline in status.json.
func (c *crash) sample() {
	records := recorded(c.t, c.agent)
	if len(records) > 1 {
		c.t.Errorf("%s: %d records", c.point, len(records))
	}
	for _, r := range records {
		if r.ShuttingDown() {
			c.deadlines[r.Shutdown.Deadline] = true
		} else if r.Hold.Reason != "" {
			c.holds[r.Hold] = true
		}
	}
	if s := c.Launcher.Status(); s.Deadline != "" {
		c.told[s.Deadline] = true
	}
}

// passed returns the points that the agent passed while they counted, up to its death.
func (c *crash) passed() []string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

func (c *crash) check() {
	c.t.Helper()
	s, passed := c.Launcher.Status(), c.passed()
	if last := passed[len(passed)-1]; last != c.point {
		c.t.Errorf("%s: killed at %s", c.point, last)
	}
	if asked, durable := slices.Index(passed, "ask"), slices.Index(passed, "put-begun.done"); !c.back && asked >= 0 && (durable < 0 || asked < durable) {
		c.t.Errorf("%s: the guest was asked before the record was durable: %v", c.point, passed)
	}
	if len(c.deadlines) > 1 || len(c.deadlines) == 0 && !c.own || len(c.told) != 1 {
		c.t.Errorf("%s: deadlines on disk %v, in status.json %v; want one", c.point, c.deadlines, c.told)
	}
	outcomes := c.outcomes
	if c.request && !slices.Contains(passed, "put-requested.done") {
		outcomes = append(slices.Clone(outcomes), "AlreadyStopped") // no record says that the guest was asked
	}
	if !slices.Contains(outcomes, s.Outcome) || s.Cause != c.cause || s.UID != c.UID {
		c.t.Errorf("%s: status.json says %+v", c.point, s)
	}
	deadline, err := time.Parse(time.RFC3339Nano, s.Deadline)
	if err != nil {
		c.t.Fatalf("%s: %v", c.point, err)
	}
	// If the agent saw the trigger and died before its record was durable, the grace period
	// begins with the next agent.
	start := c.to
	if !c.remembers {
		start = c.ready
	}
	if off := deadline.Sub(c.from.Add(c.grace)); off < -ms {
		c.t.Errorf("%s: the deadline is %v early", c.point, -off)
	}
	machine := c.node.Late(c.from, time.Now()) // up to eight agents start at once
	if off := deadline.Sub(start.Add(c.grace)); off > c.notice+2*machine {
		c.t.Errorf("%s: the deadline is %v late, want %v and twice the %v that the machine was late", c.point, off, c.notice, machine)
	}
	if !c.own {
		c.checkDestroyed()
	}
}

// checkDestroyed checks that the due signals were sent and none was early. Each was on time
// or, if the agent was dead then, sent by the next agent before that agent was ready.
func (c *crash) checkDestroyed() {
	c.t.Helper()
	for deadline := range c.deadlines {
		due := node.Moment(c.t, time.Duration(deadline))
		c.checkSent(syscall.SIGTERM, due, c.ready)
		if c.frozen {
			c.checkSent(syscall.SIGKILL, due.Add(destroyTimeout), c.ready.Add(destroyTimeout))
		}
	}
}

// checkSent checks when the kernel was told to send the signal. The lateness of the machine
// is added once for each thread that has to be woken. This is one thread of the agent, or,
// if only libvirt can end QEMU, those of the keeper, of libvirt's client and of libvirtd.
func (c *crash) checkSent(signal syscall.Signal, due, back time.Time) {
	c.t.Helper()
	at, ok := c.signals.Sent(c.t, c.Guest, signal)
	if !ok {
		c.t.Errorf("%s: nobody sent %v", c.point, signal)
		return
	}
	sent := node.Moment(c.t, at)
	took, machine := sent.Sub(due), c.node.Late(due, sent)
	if c.hidden || c.frozen {
		machine *= 3
	}
	if took < -ms { // the conversion between the clocks is not exact
		c.t.Errorf("%s: %v %v before it is due", c.point, signal, -took)
	}
	may := late + machine
	if onTime := took <= may; onTime {
		c.late = max(c.late, took)
	} else if sent.Before(c.returned) || sent.After(back.Add(may)) {
		c.t.Errorf("%s: %v %v after it is due, %v after the agent's return, %v after it was ready; the machine is %v late",
			c.point, signal, took, sent.Sub(c.returned), sent.Sub(c.ready), machine)
	}
}

//go:build !unit

package handover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// inPods is the kind whose QEMU is a child of its launcher's shim. The agents have no libvirt.
type inPods struct{}

func (inPods) flags(*host) []string { return []string{"--libvirt-uri="} }

func (k inPods) boot(v *vm, s node.Spec) {
	v.w.Helper()
	// Like libvirt's, both of the VM's QEMUs write into one file.
	s.Serial = filepath.Join(v.w.TempDir(), s.Name+".serial")
	v.spec = s
	v.VM = k.launch(v, &v.here)
	v.WaitUp(v.w)
}

func (k inPods) receive(v *vm) {
	v.w.Helper()
	v.there.launcher.Env = []string{"VMGRACE_INCOMING=" + v.migrationUID}
	k.launch(v, &v.there)
}

// launch starts the shim and the QEMU of a place.
func (inPods) launch(v *vm, p *place) *node.VM {
	v.w.Helper()
	var args []string
	if p.moments != nil {
		socket := filepath.Join(p.Dir, p.pod+".wire")
		newMonitorWire(v.w, p.moments, socket, filepath.Join(p.Dir, v.spec.DomainName()+".qmp"))
		args = append(args, "--ask-with=qmp:"+socket)
	}
	g := p.agent.LaunchInPod(v.w, v.spec, p.launcher, p.podUID, args...)
	p.shim = g.Shim
	p.inside.add(&qemu{VM: g})
	return g
}

func (inPods) job(v *vm) (sent bool, slowed int) {
	v.w.Helper()
	var m struct {
		Status   string
		RAM      struct{ Transferred int }
		Throttle int `json:"cpu-throttle-percentage"`
	}
	if err := v.here.inside.of(v.Domain).ask("query-migrate", &m); err != nil {
		return false, 0 // the guest has left
	}
	return m.Status == "active" && m.RAM.Transferred > 0, m.Throttle
}

func (inPods) user(v *vm, command string) {
	v.w.Helper()
	do := map[string]string{"suspend": "stop", "resume": "cont"}[command]
	if err := v.here.inside.of(v.Domain).ask(do, nil); err != nil {
		v.w.Fatalf("%s: %v", do, err)
	}
}

func (inPods) faults() []fault {
	again := func(w world, h *host) {
		w.Helper()
		h.agent.Kill()
		h.restart(w)
	}
	return append(faults(),
		fault{what: "the source's agent is killed", do: func(_ string, from, _ *host) error { return from.agent.Signal(unix.SIGKILL) },
			undo: func(w world, from, _ *host) { again(w, from) }},
		fault{what: "the target's agent is killed", do: func(_ string, _, to *host) error { return to.agent.Signal(unix.SIGKILL) },
			undo: func(w world, _, to *host) { again(w, to) }})
}

// qemus are the QEMUs of a host that are in their launchers, by domain.
type qemus struct {
	mu  sync.Mutex
	all map[string]*qemu
}

func (s *qemus) add(q *qemu) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[q.Domain] = q
}

// of returns the latest QEMU of a domain, nil if it has none here.
func (s *qemus) of(domain string) *qemu {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[domain]
}

// qemu is a QEMU in its launcher with a monitor of the test's own.
type qemu struct {
	*node.VM

	mu    sync.Mutex
	conn  net.Conn
	lines *bufio.Reader
}

// state is what libvirt would call the domain's state, "" if there is no guest: QEMU has ended, or
// waits for one.
func (q *qemu) state() string {
	var s struct{ Status string }
	// A QEMU that has just begun does not listen yet.
	node.Poll(context.Background(), time.Second, func() bool { return q.Gone() || q.ask("query-status", &s) == nil })
	if s.Status == "inmigrate" || q.Gone() {
		return ""
	}
	return s.Status
}

func (q *qemu) signal(s unix.Signal) error {
	if q.Gone() {
		return unix.ESRCH
	}
	return unix.Kill(q.PID, s)
}

// ask makes QEMU carry out a command without arguments and decodes its answer.
func (q *qemu) ask(command string, answer any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn == nil {
		if err := q.connect(); err != nil {
			return err
		}
	}
	err := q.execute(command, answer)
	if err != nil {
		_ = q.conn.Close()
		q.conn = nil
	}
	return err
}

// happened waits for QEMU's next event of this name and returns when it was. What QEMU has said
// until it ended counts, too.
func (q *qemu) happened(event string) (at time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn == nil {
		if err := q.connect(); err != nil {
			return at, err
		}
	}
	_ = q.conn.SetDeadline(time.Now().Add(soon))
	for {
		line, err := q.lines.ReadBytes('\n')
		if err != nil {
			return at, err
		}
		var said struct {
			Event     string
			Timestamp struct{ Seconds, Microseconds int64 }
		}
		if err := json.Unmarshal(line, &said); err != nil {
			return at, err
		}
		if said.Event == event {
			return time.Unix(said.Timestamp.Seconds, 1000*said.Timestamp.Microseconds), nil
		}
	}
}

func (q *qemu) connect() error {
	conn, err := net.DialTimeout("unix", q.OwnMonitorSocket(), time.Second)
	if err != nil {
		return err
	}
	q.conn, q.lines = conn, bufio.NewReader(conn)
	if err := q.execute("qmp_capabilities", nil); err != nil {
		_ = q.conn.Close()
		q.conn = nil
		return err
	}
	return nil
}

func (q *qemu) execute(command string, answer any) error {
	_ = q.conn.SetDeadline(time.Now().Add(soon))
	if _, err := fmt.Fprintf(q.conn, "{\"execute\": %q, \"id\": %q}\n", command, command); err != nil {
		return err
	}
	for {
		line, err := q.lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var said struct {
			ID     string
			Error  *struct{ Desc string }
			Return json.RawMessage
		}
		if err := json.Unmarshal(line, &said); err != nil {
			return err
		}
		switch {
		case said.ID != command: // the greeting, or an event
		case said.Error != nil:
			return errors.New(said.Error.Desc)
		case answer == nil:
			return nil
		default:
			return json.Unmarshal(said.Return, answer)
		}
	}
}

package shim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// monitor is a QMP server whose answers a test sets.
type monitor struct {
	path string
	mu   sync.Mutex
	got  []string
}

// listen answers each command; nil means no answer.
func listen(t *testing.T, greeting string, answer func(command, id string) []string) *monitor {
	t.Helper()
	m := &monitor{path: filepath.Join(t.TempDir(), "qmp")}
	l, err := net.Listen("unix", m.path)
	kit.Must(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.serve(conn, greeting, answer)
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return m
}

func (m *monitor) serve(conn net.Conn, greeting string, answer func(command, id string) []string) {
	defer conn.Close()
	fmt.Fprint(conn, greeting)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var c struct {
			Execute string          `json:"execute"`
			ID      json.RawMessage `json:"id"`

			Arguments struct {
				ID json.RawMessage `json:"id"`
			} `json:"arguments"`
		}
		if json.Unmarshal(bytes.TrimPrefix(lines.Bytes(), []byte{sentinel}), &c) != nil {
			return
		}
		m.mu.Lock()
		m.got = append(m.got, c.Execute)
		m.mu.Unlock()
		for _, line := range answer(c.Execute, string(c.ID)+string(c.Arguments.ID)) {
			fmt.Fprint(conn, line+"\r\n")
		}
	}
}

func (m *monitor) commands() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

const greeting = `{"QMP": {"version": {"qemu": {"micro": 0}}, "capabilities": ["oob"]}}` + "\r\n"

// qemu answers as QEMU does, with events in between.
func qemu(status string) func(command, id string) []string {
	return func(command, id string) []string {
		event := `{"timestamp": {"seconds": 1}, "event": "RESUME"}`
		if command == "query-status" {
			return []string{event, `{"return": {"status": "` + status + `", "running": false}, "id": ` + id + `}`}
		}
		return []string{event, `{"return": {}, "id": ` + id + `}`, event}
	}
}

func TestAnEventMayComeBeforeTheGreeting(t *testing.T) {
	event := `{"timestamp": {"seconds": 1}, "event": "VSERPORT_CHANGE", "data": {"open": false, "id": "0"}}` + "\r\n"
	m := listen(t, event+greeting, qemu("running"))
	if off, err := powerdown(t.Context(), m.path, time.Now().Add(10*time.Second)); err != nil || off != "" {
		t.Errorf("off %q, %v", off, err)
	}
	if got := m.commands(); !slices.Contains(got, "system_powerdown") {
		t.Errorf("%q", got)
	}
}

func TestTheButtonIsPressedOfAGuestThatCanHearIt(t *testing.T) {
	for status, before := range map[string][]string{"running": nil, "paused": {"cont"}, "suspended": {"system_wakeup"}, "prelaunch": nil} {
		m := listen(t, greeting, qemu(status))
		off, err := powerdown(t.Context(), m.path, time.Now().Add(10*time.Second))
		if err != nil || off != "" {
			t.Errorf("%s: off %q, %v", status, off, err)
		}
		want := slices.Concat([]string{"qmp_capabilities", "query-status"}, before, []string{"system_powerdown"})
		if got := m.commands(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
	for _, status := range []string{"io-error", "inmigrate", "internal-error", ""} {
		m := listen(t, greeting, qemu(status))
		if _, err := powerdown(t.Context(), m.path, time.Now().Add(10*time.Second)); err == nil || slices.Contains(m.commands(), "cont") {
			t.Errorf("%s: %v, after %q", status, err, m.commands())
		}
	}
}

// ending answers as a QEMU whose guest powers off when asked.
func ending(after string) func(command, id string) []string {
	pressed := false
	return func(command, id string) []string {
		switch {
		case command == "system_powerdown":
			pressed = true
			event := `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}`
			return []string{`{"return": {}, "id": ` + id + `}`, `{"event": "POWERDOWN"}`, event}
		case command == "query-status" && pressed:
			return qemu(after)(command, id)
		default:
			return qemu("running")(command, id)
		}
	}
}

func TestTheShimHearsThatAGuestIsOffAndQEMUStays(t *testing.T) {
	for name, c := range map[string]struct {
		answer   func(command, id string) []string
		commands int
		says     string
		failed   bool
	}{
		"it powers off":              {ending("shutdown"), 5, signals.GuestOff, false},
		"it was off when asked":      {qemu("shutdown"), 2, signals.GuestOff, false},
		"it panics":                  {ending("guest-panicked"), 5, signals.GuestPanicked, false},
		"it had panicked when asked": {qemu("guest-panicked"), 2, signals.GuestPanicked, true},
	} {
		t.Run(name, func(t *testing.T) {
			monitor := listen(t, greeting, c.answer)
			result := make(chan error, 1)
			m := request(Ask{QMP: monitor.path}, grace.ModeACPI, time.Now().Add(10*time.Second), result)
			defer m.close()
			if err := <-result; (err != nil) != c.failed {
				t.Fatal(err)
			}
			<-m.guestOff()
			if m.guest != c.says {
				t.Errorf("the guest is %q", m.guest)
			}
			if got := monitor.commands(); len(got) != c.commands || slices.Contains(got, "quit") {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestAGuestThatRunsIsNotOff(t *testing.T) {
	for name, answer := range map[string]func(command, id string) []string{"it hears nothing": qemu("running"), "it was reset": ending("running"), "it is paused": ending("paused")} {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			monitor := listen(t, greeting, answer)
			m := request(Ask{QMP: monitor.path}, grace.ModeACPI, time.Now().Add(10*time.Second), result)
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			kit.Eventually(t, "it was looked at", func() bool { return len(monitor.commands()) >= 5 })
			m.close() // what waits ends with it
			select {
			case <-m.guestOff():
				t.Error("off")
			default:
			}
		})
	}
}

func TestAMonitorThatSomebodyElseHoldsIsSaid(t *testing.T) {
	// given: QEMU takes a second client's connection, and does not read it
	path := filepath.Join(t.TempDir(), "qmp")
	l, err := net.Listen("unix", path)
	kit.Must(t, err)
	defer l.Close()
	// when
	result := make(chan error, 1)
	m := request(Ask{QMP: path}, grace.ModeACPI, time.Now().Add(100*time.Millisecond), result)
	err = <-result
	m.close()
	// then
	text := fmt.Sprint(err)
	if !strings.HasPrefix(text, signals.ResultBusy) || !strings.Contains(text, "of its own") {
		t.Errorf("%v", err)
	}
}

func TestAMonitorThatHangsFloodsOrLies(t *testing.T) {
	const timeout = 300 * time.Millisecond
	flood := slices.Repeat([]string{`{"event": "` + strings.Repeat("x", 1000) + `"}`}, 1000)
	for name, c := range map[string]struct {
		greeting string
		answer   func(command, id string) []string
		want     string
	}{
		"says nothing":       {"", qemu("running"), signals.ResultBusy},
		"hangs":              {greeting, func(string, string) []string { return nil }, "no answer"},
		"floods":             {greeting, func(string, string) []string { return flood }, "says too much"},
		"never ends a line":  {`{"QMP": "` + strings.Repeat("x", maxQMP), qemu("running"), "says too much"},
		"refuses":            {greeting, func(_, id string) []string { return []string{`{"error": {"desc": "no"}, "id": ` + id + `}`} }, `refused: "no"`},
		"answers another":    {greeting, func(string, string) []string { return []string{`{"return": {}, "id": 99}`} }, "no answer"},
		"is no monitor":      {"HTTP/1.1 400\r\n", qemu("running"), "invalid character"},
		"lies of its status": {greeting, func(_, id string) []string { return []string{`{"return": [[[`, `{"return": 7, "id": ` + id + `}`} }, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			m := listen(t, c.greeting, c.answer)
			from := time.Now()
			_, err := powerdown(t.Context(), m.path, from.Add(timeout))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if took := time.Since(from); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if slices.Contains(m.commands(), "system_powerdown") {
				t.Errorf("after %q", m.commands())
			}
		})
	}
}

func TestHowToAsk(t *testing.T) {
	for text, want := range map[string]Ask{
		"": {}, "qmp:/x": {QMP: "/x"}, "exec:virsh shutdown x": {Exec: "virsh shutdown x"}, "qga:/y": {QGA: "/y"}, "qga:/y qmp:/x": {QMP: "/x", QGA: "/y"},
	} {
		var got Ask
		for _, one := range strings.Split(strings.ReplaceAll(text, " q", "\nq"), "\n") {
			if err := got.add(one); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
		if got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, text := range []string{"qmp", "qmp:", "exec:", "exec: ", "ssh:x", ":", "qmp:/" + strings.Repeat("x", 107), "qga:/" + strings.Repeat("x", 107)} {
		got := Ask{}
		if err := got.add(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	// A monitor and a command would both press the button: the last one counts.
	if got := (Ask{QMP: "/x", QGA: "/y"}); got.add("exec:virsh shutdown x") != nil || got != (Ask{Exec: "virsh shutdown x", QGA: "/y"}) {
		t.Errorf("%+v", got)
	}
}

package shim

import (
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

const (
	// pollInterval is for what is due: the pid file, the launcher directory, the end of a
	// shim that was signalled. A pid file that may be half written is read twice, and
	// must be noticed within 100 ms.
	pollInterval = 40 * time.Millisecond
	// statusInterval is for status.json, once nothing is due. The Go runtime looks around a
	// dozen times whenever it wakes.
	statusInterval = 10 * time.Second
	// unheardInterval is for the status.json of a launcher that asks its guest, and has no
	// inotify instance.
	unheardInterval = time.Second
)

// Signals are the caught signals.
type Signals struct {
	// Requests ask for the VM's end; the first one counts.
	Requests <-chan os.Signal
	// Children says that some child has ended.
	Children <-chan os.Signal
}

// Catch must be main's first call: an earlier signal is lost. It stays in force until the
// process ends.
func Catch() Signals {
	requests := make(chan os.Signal, 1)
	signal.Notify(requests, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// Catch and drop SIGPIPE. An ignored signal would be inherited by the command. The
	// default would end the shim when nobody reads its log.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	return Signals{Requests: requests, Children: children}
}

type shim struct {
	config Config
	log    *log.Logger
	logged map[string]bool
	sender *signals.Sender

	signal   string // the request; "" before
	at       time.Time
	told     bool // the trigger is written
	complete bool // nothing is left to do in the launcher directory

	waiting *pidFile // nil once the process is known
	command int      // our child, where we started it
	ended   <-chan struct{}
	vm      *process.Watched
	asker   *asker
	mover   *mover
}

func newShim(config Config, logger *log.Logger) *shim {
	sender := signals.NewSender(config.Dir, config.VM)
	return &shim{config: config, log: logger, logged: map[string]bool{}, sender: sender, asker: newAsker(config.Ask, sender), mover: newMover(config, sender)}
}

// Run does the shim's work until the VM process has ended, and returns the
// exit status. It waits for every child of this process.
func Run(config Config, caught Signals, logger *log.Logger) int {
	s := newShim(config, logger)
	status := s.run(caught)
	s.asker.close()
	s.mover.close()
	if s.mover.away() && s.awaitMoved() {
		status = 0
	}
	s.try(s.sender.Withdraw())
	if s.vm != nil {
		_ = s.vm.Close() // ends the watch, where it has not ended
	}
	return status
}

func (s *shim) run(caught Signals) int {
	s.try(adoptOrphans())
	status, ended := s.begin()
	due, slow := time.NewTicker(pollInterval), time.NewTimer(statusInterval)
	defer due.Stop()
	defer slow.Stop()
	for !ended {
		var dueC <-chan time.Time // an idle shim sleeps: a ticker that nobody waits for wakes nobody
		if !s.complete || s.waiting != nil {
			dueC = due.C
		}
		s.listen(slow)
		status, ended = s.step(caught, dueC, slow.C)
		if !ended && s.readsStatus() {
			ended = s.lookAtStatus()
		}
	}
	return status
}

// step waits for the next event, and acts upon it.
func (s *shim) step(caught Signals, due, slow <-chan time.Time) (status int, ended bool) {
	changed, lost := s.asker.changed()
	select {
	case sig := <-caught.Requests:
		s.request(sig)
	case <-caught.Children:
		status, ended = s.reap()
	case <-s.ended:
		s.log.Print("the VM process has ended")
		status, ended = 0, true
	case <-due:
		s.tell()
		if s.waiting != nil {
			status, ended = s.lookForPID()
		}
	case err := <-s.asker.results:
		s.try(s.asker.done(err))
	case <-s.asker.timer.C:
		s.try(s.asker.late())
	case <-s.asker.monitor.guestOff():
		s.log.Print("the guest is off, and its process stays: the agent ends it")
		s.try(s.asker.off())
	case a := <-s.mover.answers:
		s.try(s.mover.done(a))
	case <-s.mover.timer.C:
		s.mover.wake()
	case err := <-lost:
		s.try(err)
	case <-changed: // status.json may be another
	case <-slow:
	}
	return status, ended
}

// begin registers and finds the VM process. A launcher that asks its guest finds it
// first, so that vm.json names it.
func (s *shim) begin() (status int, ended bool) {
	if !s.asker.asks() {
		s.tell()
		return s.find()
	}
	if status, ended = s.find(); !ended {
		s.tell()
	}
	return status, ended
}

// request takes the first signal; later ones change nothing.
func (s *shim) request(sig os.Signal) {
	if s.signal != "" {
		return
	}
	s.signal, s.at = signalName(sig), time.Now()
	s.tell()
}

// tell registers the VM and, once there was a signal, writes the trigger.
func (s *shim) tell() {
	var told bool
	var err error
	if s.signal == "" {
		err = s.sender.Register()
	} else {
		told, err = s.sender.Send(s.signal, s.at)
	}
	if told && !s.told {
		s.log.Printf("%s: asked the agent to shut down %s", s.signal, grace.DomainName(s.config.VM.Namespace, s.config.VM.Name))
	}
	if err == nil && !s.complete {
		if s.signal == "" {
			s.log.Printf("registered %s in %s", grace.DomainName(s.config.VM.Namespace, s.config.VM.Name), s.config.Dir)
		}
	}
	s.told, s.complete = told, err == nil
	s.try(err)
}

// find starts the command, or begins to watch.
func (s *shim) find() (status int, ended bool) {
	switch {
	case s.config.PIDFile != "":
		s.waiting = &pidFile{path: s.config.PIDFile}
		if len(s.config.Command) == 0 {
			return s.lookForPID()
		}
	case s.config.PID != 0:
		return s.watch(s.config.PID)
	}
	pid, err := start(s.config.Command)
	if err != nil {
		s.try(err)
		return 1, true
	}
	s.command = pid
	if s.waiting != nil {
		return s.lookForPID()
	}
	s.found(pid)
	return 0, false
}

// found takes the pid of the VM process.
func (s *shim) found(pid int) {
	s.try(s.asker.found(pid))
	s.mover.found()
}

func (s *shim) lookForPID() (status int, ended bool) {
	pid, written, err := s.waiting.read()
	s.try(err)
	if pid == 0 {
		return 0, false
	}
	status, ended = s.watch(pid)
	if s.vm != nil && startedAfter(s.vm.StartTime(), written) {
		s.log.Printf("process %d is younger than %s: the VM process has ended", pid, s.config.PIDFile)
		return 0, true
	}
	return status, ended
}

// watch begins to watch the VM process. If that fails, a pid file is read again later;
// for a fixed pid it is an error.
func (s *shim) watch(pid int) (status int, ended bool) {
	vm, err := process.Watch(pid)
	switch {
	case errors.Is(err, process.ErrGone):
		s.log.Printf("process %d has ended already", pid)
		return 0, true
	case err != nil:
		s.try(err)
		return 1, s.waiting == nil
	}
	s.log.Printf("watching process %d", pid)
	s.vm, s.ended = vm, vm.Done()
	s.found(pid)
	s.waiting = nil
	return 0, false
}

// leaving reports whether the shim was signalled and has no VM process to wait for. Then
// status.json decides.
func (s *shim) leaving() bool { return s.signal != "" && s.waiting != nil }

func (s *shim) stopped() bool {
	stopped, err := s.sender.Stopped()
	s.try(err)
	if stopped {
		s.log.Print("the agent says that the VM is stopped")
	}
	return stopped
}

// reap waits for ended children. The command's end is the VM's, unless a pid file has
// named another process.
func (s *shim) reap() (status int, ended bool) {
	reap(func(pid, code int) {
		if pid == s.command && s.vm == nil {
			status, ended = code, true
		}
		s.try(s.asker.ended(pid, code))
	})
	return status, ended
}

// try logs an error only the first time: it comes back with every retry.
func (s *shim) try(err error) {
	if err == nil {
		return
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	if !s.logged[line] {
		s.logged[line] = true
		s.log.Print(line)
	}
}

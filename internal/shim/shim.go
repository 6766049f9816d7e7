package shim

import (
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

const (
	// pollInterval is for a trigger that is not written yet, and for a pid file that may be
	// half written.
	pollInterval = 40 * time.Millisecond
	// restInterval is for a shim that hears of changes. The Go runtime looks around a dozen
	// times whenever it wakes.
	restInterval = time.Minute
	// unheardInterval is for one that does not, and for a registration that fails.
	unheardInterval = time.Second
	// returnTimeout is how long a VM that has ended may take to come back as another
	// instance.
	returnTimeout = 5 * time.Second
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
	signal.Notify(requests, stopSignals()...)
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
	end     signals.End       // what the agent says of the VM's end
	stood   bool              // for returnTimeout
	back    *time.Timer       // of that
	changes *fsnotify.Watcher // nil where there is none
	deaf    bool              // nothing is heard of a change
	asker   *asker
	mover   *mover
}

func newShim(config Config, logger *log.Logger) *shim {
	sender := signals.NewSender(config.Dir, config.VM)
	s := &shim{config: config, log: logger, logged: map[string]bool{}, sender: sender, asker: newAsker(config.Ask, sender), mover: newMover(config, sender), back: time.NewTimer(0)}
	s.back.Stop()
	return s
}

// Run does the shim's work until the VM process has ended, and returns the
// exit status. It waits for every child of this process.
func Run(config Config, caught Signals, logger *log.Logger) int {
	s := newShim(config, logger)
	status := s.run(caught)
	if s.changes != nil {
		_ = s.changes.Close() // nothing is left to be heard
	}
	s.asker.monitor.close()
	s.mover.close()
	if s.mover.away() && s.await(movedTimeout).Outcome == grace.Migrated {
		status = 0
	}
	s.try(s.tellForced())
	s.try(s.sender.Withdraw())
	if s.vm != nil {
		_ = s.vm.Close() // ends the watch, where it has not ended
	}
	return status
}

func (s *shim) run(caught Signals) int {
	s.try(adoptOrphans())
	if s.staysOff() {
		return 0
	}
	status, ended := s.begin()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !ended {
		s.try(s.listen())
		if status, ended = s.look(); !ended {
			timer.Reset(s.interval())
			status, ended = s.step(caught, timer.C)
		}
	}
	return status
}

// step waits for the next event, and acts upon it.
func (s *shim) step(caught Signals, due <-chan time.Time) (status int, ended bool) {
	var changed <-chan fsnotify.Event
	var lost <-chan error
	if s.changes != nil {
		changed, lost = s.changes.Events, s.changes.Errors
	}
	select {
	case sig := <-caught.Requests:
		s.request(sig)
	case <-caught.Children:
		status, ended = s.reap()
	case <-s.ended:
		s.log.Print("the VM process has ended")
		status, ended = 0, true
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
	case <-s.back.C:
		s.stood = true
	case <-changed:
	case <-due:
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
			return 0, false
		}
		s.waiting.former, _ = os.Stat(s.config.PIDFile) // what cannot be read has no pid
	case s.config.PID != 0:
		return s.watch(s.config.PID)
	}
	pid, err := start(s.config.Command)
	if err != nil {
		s.try(err)
		return 1, true
	}
	s.command = pid
	if s.waiting == nil {
		s.found(pid)
	}
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
	if s.vm != nil && s.command == 0 && startedAfter(s.vm.StartTime(), written) {
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

// reap waits for ended children. The command's end is the VM's, unless a pid file has
// named another process. One that has become a daemon has written that file before its end.
func (s *shim) reap() (status int, ended bool) {
	reap(func(pid, code int) {
		if pid == s.command && s.vm == nil {
			status, ended = code, true
		}
		s.try(s.asker.ended(pid, code))
	})
	for n := 0; n < 2 && ended && s.waiting != nil; n++ { // twice: see pidFile.read
		_, _ = s.lookForPID()
		ended = s.vm == nil
	}
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

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
	// retryInterval is for the launcher directory and for status.json.
	retryInterval = 100 * time.Millisecond
	// pollInterval is for a pid file that may be half written or of which no
	// hints can be had: twice this is well below 100 ms.
	pollInterval = 40 * time.Millisecond
	// settleInterval is from a hint to the look at the pid file.
	settleInterval = 20 * time.Millisecond
	// restInterval is for what makes no hint: a mount over a directory, another
	// name for one that is far above.
	restInterval = 10 * time.Minute
)

// Signals are the caught signals.
type Signals struct {
	// Requests are those that ask for the VM's end; the first one counts.
	Requests <-chan os.Signal
	// Children says that some child has ended.
	Children <-chan os.Signal
}

// Catch is the first thing that main does: until then a signal is lost. It
// stays in force until the process ends.
func Catch() Signals {
	requests := make(chan os.Signal, 1)
	signal.Notify(requests, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// Caught and forgotten. To ignore it would be passed on to the command; to
	// leave it would end the shim when nobody reads its log.
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
	asker   *asker // nil where libvirt asks the guest
	status  *hints // of status.json
	deaf    bool   // there are none: it is looked at now and then
}

func newShim(config Config, logger *log.Logger) *shim {
	s := &shim{config: config, log: logger, logged: map[string]bool{}, sender: signals.NewSender(config.Dir, config.VM), status: newHints()}
	if s.asker = newAsker(config.Ask, s.sender, s.status); s.asker == nil {
		s.status.way = ownDirectory
	}
	return s
}

// Run does the shim's work until the VM process has ended, and returns the
// exit status. It waits for every child of this process.
func Run(config Config, caught Signals, logger *log.Logger) int {
	s := newShim(config, logger)
	status := s.run(caught)
	s.status.close()
	s.asker.close()
	if err := s.sender.Withdraw(); err != nil {
		s.once(err)
	}
	if s.vm != nil {
		_ = s.vm.Close() // ends the watch, where it has not ended
	}
	if s.waiting != nil {
		s.waiting.close()
	}
	return status
}

func (s *shim) run(caught Signals) int {
	s.try(adoptOrphans())
	status, ended := s.begin()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for !ended {
		hintC, lookC := s.hints()
		var retryC <-chan time.Time // an idle shim sleeps: a ticker that nobody waits for wakes nobody
		if s.retries() {
			retryC = retry.C
		}
		resultC, lateC, offC := s.asking()
		select {
		case sig := <-caught.Requests:
			s.request(sig)
		case <-caught.Children:
			status, ended = s.reap()
		case <-s.ended:
			s.log.Print("the VM process has ended")
			status, ended = 0, true
		case <-s.status.C:
			ended = s.lookAtStatus()
		case <-hintC:
			s.waiting.hint()
		case <-lookC:
			status, ended = s.lookForPID()
		case <-retryC:
			s.tell()
			ended = s.leaving() && s.stopped()
			if s.deaf {
				s.status.poke()
			}
		case err := <-resultC:
			s.try(s.asker.done(err))
		case <-lateC:
			s.try(s.asker.late())
		case <-offC:
			s.log.Print("the guest is off, and its process stays: the agent ends it")
			s.try(s.asker.off())
		}
	}
	return status
}

// hints are what tells of the pid file.
func (s *shim) hints() (hint <-chan os.Signal, look <-chan time.Time) {
	if s.waiting == nil {
		return nil, nil
	}
	return s.waiting.hints.C, s.waiting.next.C
}

// retries: something is not done yet, or nothing would tell of it.
func (s *shim) retries() bool { return !s.complete || s.leaving() || s.deaf }

// request takes the first signal; the others change nothing.
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
		s.status.poke() // from now on it says something of this VM
	}
	s.told, s.complete = told, err == nil
	s.try(err)
}

// find starts the command, or begins to watch.
func (s *shim) find() (status int, ended bool) {
	switch {
	case s.config.PIDFile != "":
		s.waiting = newPIDFile(s.config.PIDFile)
		if len(s.config.Command) == 0 {
			return s.lookForPID()
		}
	case s.config.PID != 0:
		return s.watch(s.config.PID)
	}
	pid, err := start(s.config.Command)
	if err != nil {
		s.once(err)
		return 1, true
	}
	s.command = pid
	if s.waiting != nil {
		return s.lookForPID()
	}
	s.try(s.asker.found(pid))
	return 0, false
}

func (s *shim) lookForPID() (status int, ended bool) {
	pid, written, err := s.waiting.look()
	if err != nil {
		s.once(err)
	}
	if pid == 0 {
		return 0, false
	}
	status, ended = s.watch(pid)
	if s.vm == nil {
		s.waiting.poll()
		return status, ended
	}
	if startedAfter(s.vm.StartTime(), written) {
		s.log.Printf("process %d is younger than %s: the VM process has ended", pid, s.config.PIDFile)
		return 0, true
	}
	return status, ended
}

// watch begins to watch the VM process. Where that fails, a pid file is read
// again later; a pid that was given for good is an error.
func (s *shim) watch(pid int) (status int, ended bool) {
	vm, err := process.Watch(pid)
	switch {
	case errors.Is(err, process.ErrGone):
		s.log.Printf("process %d has ended already", pid)
		return 0, true
	case err != nil:
		s.once(err)
		return 1, s.waiting == nil
	}
	s.log.Printf("watching process %d", pid)
	s.vm, s.ended = vm, vm.Done()
	s.try(s.asker.found(pid))
	if s.waiting != nil {
		s.waiting.close()
		s.waiting = nil
	}
	return 0, false
}

// leaving: it was signalled and there is no VM process to wait for, so the
// agent's word is the end.
func (s *shim) leaving() bool { return s.signal != "" && s.waiting != nil }

func (s *shim) stopped() bool {
	stopped, err := s.sender.Stopped()
	if err != nil {
		s.once(err)
	}
	if stopped {
		s.log.Print("the agent says that the VM is stopped")
	}
	return stopped
}

// reap takes the children that have ended. The command's end is the VM's,
// unless a pid file has named another process.
func (s *shim) reap() (status int, ended bool) {
	reap(func(pid, code int) {
		if pid == s.command && s.vm == nil {
			status, ended = code, true
		}
		s.try(s.asker.ended(pid, code))
	})
	return status, ended
}

// try logs an error, if it is one.
func (s *shim) try(err error) {
	if err != nil {
		s.once(err)
	}
}

// once logs an error the first time: it comes back with every retry.
func (s *shim) once(err error) {
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	if !s.logged[line] {
		s.logged[line] = true
		s.log.Print(line)
	}
}

package shim

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Config is the parsed command line. Exactly one of PID, PIDFile and Command is set, or
// Version alone. With Ask it is Command, and PIDFile may come with it. If Incoming is set,
// Command makes QEMU wait for a guest.
type Config struct {
	VM      signals.VM
	Dir     string
	PID     int
	PIDFile string
	Command []string
	Ask     Ask
	Version bool

	Incoming bool
	// TerminationLog is the file that kubelet reads the container's termination message from.
	TerminationLog string
}

// ErrHelp asks for Usage.
var ErrHelp = flag.ErrHelp

// Usage is the text of --help.
const Usage = `Usage: launcher-shim [flags] {--pid-file FILE | --pid PID | -- COMMAND [ARG...]}

Registers a VM with the node's vmgrace agent and turns a stop signal, which may
be any but CHLD, PIPE, URG, CONT, TTIN and TTOU, into a request to shut it down.
Ends when the VM process has ended.

  --namespace NAME     namespace of the VM             [$VM_NAMESPACE]
  --name NAME          name of the VM                  [$VM_NAME]
  --uid UID            uid of the VM                   [$VM_UID]
  --grace-period TIME  seconds or a Go duration (90s)  [$VM_GRACE_PERIOD_SECONDS, else none]
  --launcher-dir DIR   launcher directory              [/var/run/vmgrace/launcher]
  --pid-file FILE      watch the process whose pid is in FILE; it may appear later
  --pid PID            watch this process
  -- COMMAND ...       start this and watch it
  --ask-with HOW       ask the guest to shut down from here, when the agent says so:
                       qmp:SOCKET    by QEMU's monitor (-qmp unix:SOCKET,server=on,wait=off)
                       exec:COMMAND  by a command and its arguments, without a shell
                       qga:SOCKET    by the guest's agent; beside one of the others, too
                       Needs -- COMMAND, which is QEMU, or starts it and writes --pid-file
  --incoming-args WORDS  added to COMMAND, split at spaces, if a guest is to arrive
                       ($VMGRACE_INCOMING is set)      [-incoming defer -S]
  --version            print the version
  --help               print this text

Exit status: the command's own (128+n for a signal), 0 when a watched process
ended, or the agent says that the VM did, 1 if it crashed; 2 for wrong usage, 1
for anything else.
`

// ParseConfig reads the arguments after the program's name; getenv is
// os.Getenv. Every error but ErrHelp is wrong usage, in one line.
func ParseConfig(args []string, getenv func(string) string) (Config, error) {
	c := Config{TerminationLog: "/dev/termination-log"}
	var pid, gracePeriod, incoming string
	// Package flag takes --name as well as -name; pflag would cost 0.25 MiB.
	set := flag.NewFlagSet("launcher-shim", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&c.VM.Namespace, "namespace", getenv("VM_NAMESPACE"), "")
	set.StringVar(&c.VM.Name, "name", getenv("VM_NAME"), "")
	set.StringVar(&c.VM.UID, "uid", getenv("VM_UID"), "")
	set.StringVar(&gracePeriod, "grace-period", getenv("VM_GRACE_PERIOD_SECONDS"), "")
	set.StringVar(&c.Dir, "launcher-dir", "/var/run/vmgrace/launcher", "")
	set.StringVar(&c.PIDFile, "pid-file", "", "")
	set.StringVar(&pid, "pid", "", "")
	set.Func("ask-with", "", c.Ask.add)
	set.StringVar(&incoming, "incoming-args", "-incoming defer -S", "")
	set.BoolVar(&c.Version, "version", false, "")
	if err := set.Parse(args); err != nil {
		return c, err
	}
	if c.Version {
		return c, nil
	}
	c.Command = set.Args()
	if n := len(args) - len(c.Command); len(c.Command) > 0 && (n == 0 || args[n-1] != "--") {
		return c, fmt.Errorf("unexpected argument %q: put -- before the command to start", c.Command[0])
	}
	if err := c.checkVM(); err != nil {
		return c, err
	}
	var err error
	if c.VM.Grace, err = wholeSeconds(gracePeriod); err != nil {
		return c, fmt.Errorf("--grace-period (or $VM_GRACE_PERIOD_SECONDS) %.60q: %w", gracePeriod, err)
	}
	if c.Dir == "" {
		return c, errors.New("--launcher-dir is empty: name this VM's launcher directory")
	}
	if err := c.checkTarget(pid); err != nil {
		return c, err
	}
	c.Incoming = getenv(launcherpod.IncomingVariable) != ""
	return c, c.awaitGuest(strings.Fields(incoming))
}

// awaitGuest adds the words to the command that make QEMU wait for a guest. A command that
// does not wait would start the guest a second time.
func (c *Config) awaitGuest(words []string) error {
	switch {
	case !c.Incoming || len(c.Command) == 0:
		return nil
	case c.Ask.QMP == "":
		return errors.New("$" + launcherpod.IncomingVariable + " is set: only with --ask-with=qmp: can a guest arrive")
	case len(words) == 0:
		return errors.New("--incoming-args is empty: it is what makes QEMU wait for the guest")
	}
	c.Command = slices.Concat(c.Command, words)
	return nil
}

func (c *Config) checkVM() error {
	for _, required := range []struct{ value, flag, env string }{
		{c.VM.Namespace, "namespace", "VM_NAMESPACE"}, {c.VM.Name, "name", "VM_NAME"}, {c.VM.UID, "uid", "VM_UID"},
	} {
		if required.value == "" {
			return fmt.Errorf("--%s (or $%s) is missing", required.flag, required.env)
		}
	}
	domain := grace.DomainName(c.VM.Namespace, c.VM.Name)
	if _, _, ok := grace.SplitDomainName(domain); !ok {
		return fmt.Errorf("--namespace %.60q with --name %.60q: use Kubernetes names (lower case letters, digits and '-')", c.VM.Namespace, c.VM.Name)
	}
	if !signals.ValidUID(c.VM.UID) {
		return fmt.Errorf("--uid %.60q: %w", c.VM.UID, signals.ErrUID)
	}
	return nil
}

func (c *Config) checkTarget(pid string) error {
	if c.Ask != (Ask{}) {
		if pid != "" || len(c.Command) == 0 {
			return errors.New("--ask-with needs -- COMMAND, which is the VM process or starts it and writes --pid-file")
		}
		c.VM.Asks, c.VM.Agent = signals.AsksLauncher, c.Ask.QGA != ""
		return nil
	}
	given := 0
	for _, is := range []bool{pid != "", c.PIDFile != "", len(c.Command) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return errors.New("give exactly one of --pid-file, --pid and -- COMMAND: the process to watch")
	}
	if pid == "" {
		return nil
	}
	var err error
	if c.PID, err = parsePID(pid); err != nil {
		return fmt.Errorf("--pid: %w", err)
	}
	return nil
}

// wholeSeconds turns a flag into the text for vm.json: "" for none, else whole seconds,
// rounded up, because a guest must not get less than was asked for.
func wholeSeconds(text string) (string, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	switch {
	case text == "":
		return "", nil
	case strings.HasPrefix(text, "-"):
		return "", grace.ErrNegative
	case errors.Is(err, strconv.ErrRange):
		return "", errors.New("at most 9223372036854775807 seconds")
	case err == nil:
		return strconv.FormatUint(n, 10), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return "", errors.New("use whole seconds (90) or a Go duration (1m30s)")
	}
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return strconv.FormatInt(seconds, 10), nil
}

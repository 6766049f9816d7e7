package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/node/logind"
)

// Options are the flags of the node-agent.
type Options struct {
	NodeName, Kubeconfig     string
	Standalone               bool
	LaunchersDir, KubeletDir string
	StateDir, LibvirtURI     string
	DefaultGracePeriod       time.Duration
	RetryInterval            time.Duration
	ShutdownMode             string
	AgentTimeout             time.Duration
	DestroyTimeout           time.Duration
	DryRun                   bool
	MetricsAddress           string
	LogFormat                string
	Verbosity                int
	Migration                MigrationOptions
	DBusSocket               string
	NodeShutdownTimeout      time.Duration
	BesideKubeVirt           bool

	version bool
}

// UsageError is an invalid command line: exit status 2.
type UsageError struct{ Err error }

func (e *UsageError) Error() string {
	return fmt.Sprintf("%v (see node-agent --help)", e.Err)
}

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

func (o *Options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.NodeName, "node-name", defaultNodeName(), "name of this node; $NODE_NAME or the host name")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "API server; empty = in-cluster; ignored with --standalone")
	f.BoolVar(&o.Standalone, "standalone", false, "no API server: launcher directories are the only source")
	f.StringVar(&o.LaunchersDir, "launchers-dir", "/var/run/vmgrace/launchers", "standalone: parent of the launcher directories")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "in a cluster: where the launcher pods' volumes are")
	f.StringVar(&o.StateDir, "state-dir", defaultStateDir, "the grace cache; one agent at a time")
	f.StringVar(&o.LibvirtURI, "libvirt-uri", "qemu:///system", "the node's libvirt; empty = none: only VMs whose process is in their launcher pod")
	f.DurationVar(&o.DefaultGracePeriod, "default-grace-period", 30*time.Second, "where a VM states none")
	f.DurationVar(&o.RetryInterval, "shutdown-retry-interval", 5*time.Second, "the request is sent again this often (a booting guest misses the first)")
	f.StringVar(&o.ShutdownMode, "shutdown-mode", "auto", "auto = guest agent where it answers, else ACPI; acpi = ACPI only")
	f.DurationVar(&o.AgentTimeout, "guest-agent-timeout", 5*time.Second, "how long a guest agent may take before ACPI is used")
	f.DurationVar(&o.DestroyTimeout, "destroy-timeout", 10*time.Second, "time QEMU gets to flush and exit on SIGTERM before SIGKILL")
	f.BoolVar(&o.DryRun, "dry-run", false, "everything but requests, signals and destroys; says what it would do")
	f.StringVar(&o.MetricsAddress, "metrics-address", "127.0.0.1:9469", "/metrics, /livez, /readyz; empty = off")
	f.StringVar(&o.DBusSocket, "dbus-socket", logind.DefaultSocket, "system bus, where logind is asked to delay the node's shutdown for its VMs; empty = not delayed")
	f.DurationVar(&o.NodeShutdownTimeout, "node-shutdown-timeout", 0, "have logind delay the node's shutdown for this long at most: writes a drop-in of logind.conf, the last one, where logind's own is shorter; 0 = leave it as it is")
	o.Migration.flags(f)
	f.BoolVar(&o.BesideKubeVirt, "beside-kubevirt", false, "KubeVirt runs, asks and ends the VMs: only hold launchers while their VMs are moved, and pass the node's shutdown on to them")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	f.CountVarP(&o.Verbosity, "verbose", "v", "say more (-v: every decision)")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	return f
}

const usage = `node-agent gives the VMs of this node their grace period: asks the guest to
shut down when its launcher is signalled, and destroys it at the deadline.

  node-agent [flags]                        run
  node-agent status [--state-dir D] [-o table|json]
                                            what the grace cache holds, with the agent running or dead

Flags:
`

// Parse reads the command line. The error is a *UsageError, or pflag.ErrHelp
// when help was asked for and written to out.
func Parse(args []string, out io.Writer) (*Options, error) {
	o := &Options{}
	f := o.flags()
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprint(out, usage, f.FlagUsages()) }
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, &UsageError{err}
	}
	if f.NArg() > 0 {
		return nil, &UsageError{fmt.Errorf("unknown argument %q; the only command is status", f.Arg(0))}
	}
	err := o.check()
	if err == nil {
		err = o.checkBeside(f)
	}
	if err != nil {
		return nil, &UsageError{err}
	}
	return o, nil
}

func (o *Options) check() error {
	if o.version {
		return nil
	}
	for _, d := range []struct {
		flag string
		is   time.Duration
		zero bool
	}{
		{"default-grace-period", o.DefaultGracePeriod, true},
		{"shutdown-retry-interval", o.RetryInterval, false},
		{"guest-agent-timeout", o.AgentTimeout, true},
		{"destroy-timeout", o.DestroyTimeout, true},
		{"node-shutdown-timeout", o.NodeShutdownTimeout, true},
	} {
		if d.is < 0 || d.is == 0 && !d.zero {
			return fmt.Errorf("--%s %v: must be positive", d.flag, d.is)
		}
	}
	switch {
	case o.ShutdownMode != "auto" && o.ShutdownMode != "acpi":
		return fmt.Errorf("--shutdown-mode %q: must be auto or acpi", o.ShutdownMode)
	case o.LogFormat != "text" && o.LogFormat != "json":
		return fmt.Errorf("--log-format %q: must be text or json", o.LogFormat)
	case o.StateDir == "":
		return errors.New("--state-dir must not be empty")
	case !o.Standalone && o.NodeName == "":
		return errors.New("--node-name must not be empty: VMIs are asked for by it")
	default:
		return o.Migration.check()
	}
}

// VersionAsked reports whether only the version is wanted.
func (o *Options) VersionAsked() bool { return o.version }

const defaultStateDir = "/var/lib/vmgrace"

func defaultNodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "" // shown in the log only
	}
	return name
}

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/logs"
)

// Options are the flags of the cluster-controller.
type Options struct {
	Controllers         []string
	BesideKubeVirt      bool
	Kubeconfig          string
	Namespace           string
	LeaderElect         bool
	MetricsAddress      string
	HealthAddress       string
	WebhookPort         int
	CertificateValidity time.Duration
	ShutdownDelay       time.Duration
	LogFormat           string
	Verbosity           int
	Version             bool // only print the version
}

func (o *Options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("cluster-controller", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringSliceVar(&o.Controllers, "controllers", []string{"*"}, "what to run: * = all, NAME = this one, -NAME = not this one; names:\n"+listNames())
	f.BoolVar(&o.BesideKubeVirt, "beside-kubevirt", false, "KubeVirt marks, budgets and migrates: run only launcher-webhook, pod-disruption and taint-replacement")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "API server; empty = in-cluster")
	f.StringVar(&o.Namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "vmgrace-system"), "where the Lease, the certificate's Secret and the Service are; $POD_NAMESPACE")
	f.BoolVar(&o.LeaderElect, "leader-elect", true, "controllers run in one replica at a time; webhooks in all of them")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":9470", "/metrics; empty = off")
	f.StringVar(&o.HealthAddress, "health-address", ":9471", "/livez, /readyz; empty = off")
	f.IntVar(&o.WebhookPort, "webhook-port", 9443, "where the webhooks are served")
	f.DurationVar(&o.CertificateValidity, "certificate-validity", 90*24*time.Hour, "of the webhooks' certificate; renewed when a third of it is left")
	f.DurationVar(&o.ShutdownDelay, "shutdown-delay", 3*time.Second, "go on for so long after SIGTERM: the API server asks this replica until it hears that it leaves")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	f.CountVarP(&o.Verbosity, "verbose", "v", "say more (-v: every decision)")
	f.BoolVar(&o.Version, "version", false, "print the version and exit")
	return f
}

const usage = `cluster-controller has VMs moved instead of stopped when their launcher pods are
evicted, and says what happens: webhooks, disruption budgets and evacuations.

  cluster-controller [flags]

Flags:
`

// minValidity is the shortest validity that leaves time for a renewal.
const minValidity = 10 * time.Second

// Parse reads the command line. The error is pflag.ErrHelp after help was written to out;
// any other error means wrong usage.
func Parse(args []string, out io.Writer) (*Options, error) {
	o := &Options{}
	f := o.flags()
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprint(out, usage, f.FlagUsages()) }
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q; there are only flags", f.Arg(0))
	}
	return o, o.check()
}

func (o *Options) check() error {
	switch {
	case o.Version:
		return nil
	case o.LogFormat != "text" && o.LogFormat != "json":
		return fmt.Errorf("--log-format %q: must be text or json", o.LogFormat)
	case o.WebhookPort < 1 || o.WebhookPort > 65535:
		return fmt.Errorf("--webhook-port %d: must be 1 to 65535", o.WebhookPort)
	case o.CertificateValidity < minValidity:
		return fmt.Errorf("--certificate-validity %v: must be at least %v", o.CertificateValidity, minValidity)
	case o.ShutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay %v: must not be negative", o.ShutdownDelay)
	case o.Namespace == "":
		return errors.New("--namespace must not be empty")
	default:
		return checkNames(o.Controllers)
	}
}

// Logger returns a logger with the format and level of the flags.
func (o *Options) Logger(w io.Writer) *slog.Logger { return logs.New(w, o.LogFormat, o.Verbosity) }

package drain

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// Options is the parsed command line.
type Options struct {
	Nodes                    []string
	Drain                    drain.Options
	Selector, PodSelector    string
	DisableEviction          bool
	Timeout                  time.Duration
	Limits                   drain.Limits
	DryRun                   string
	Output                   string
	Cancel, UncordonOnCancel bool
	Version                  bool // only print the version

	nodeSelector, podSelector labels.Selector

	connection *Connection
	why        bool // only explain, for Why
}

// ErrUsage is part of the error after wrong usage.
var ErrUsage = errors.New("see --help")

// Values of --dry-run and -o.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"

	outputText = ""
	outputJSON = "json"
)

const usage = `Empty nodes for maintenance: cordon them, then evict their pods. VMs that can be
moved are moved, and waited for. Pods with volumes go one after the other, by
priority, each when the volumes of the one before are detached and attached
elsewhere.

  NAME NODE... [flags]
  NAME --selector=LABELS [flags]
  NAME --cancel NODE...      take back the marks of VMs that are to leave

Exit status: 0 drained, or the node is gone; 1 something is left, or failed, which
is named; 2 wrong usage; 130 interrupted. Started again it goes on.

Flags:
`

// NewCommand returns the command, which writes to out. Its name is kubectl vmdrain, or kubectl
// vmgrace drain. ErrUsage is part of its error if the command line is wrong.
func NewCommand(name, version string, out Output) *cobra.Command {
	o := &Options{connection: NewClusterConnection(strings.ReplaceAll(name, " ", "-"))}
	cmd := &cobra.Command{
		Use: name[strings.LastIndex(name, " ")+1:] + " NODE...", Short: "Empty nodes for maintenance, and wait for their VMs and volumes",
		SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			o.Nodes = args
			return UsageError(nil, o.check())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Version { // cobra's would need a text template, and 9 MB more
				fmt.Fprintln(out.Out, o.connection.agent, version)
				return nil
			}
			return o.Run(cmd.Context(), out)
		},
	}
	f := cmd.Flags()
	o.addFlags(f)
	help := strings.ReplaceAll(usage, "NAME", name) + f.FlagUsages() + "\nConnection, as kubectl's:\n" + o.connection.Flags.FlagUsages()
	f.AddFlagSet(o.connection.Flags)
	cmd.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprint(out.Out, help) })
	cmd.SetFlagErrorFunc(UsageError)
	cmd.SetErr(out.Err)
	o.addCompletions(cmd, out.Out)
	return cmd
}

// UsageError adds ErrUsage to an error.
func UsageError(_ *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%w)", err, ErrUsage)
}

func (o *Options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.BoolVar(&o.Drain.Force, "force", false, "also pods that declare no controller: nobody makes them anew")
	f.BoolVar(&o.Drain.IgnoreDaemonSets, "ignore-daemonsets", false, "leave the pods of DaemonSets where they are")
	f.BoolVar(&o.Drain.DeleteEmptyDir, "delete-emptydir-data", false, "also pods with emptyDir volumes: their data is deleted")
	f.BoolVar(&o.DisableEviction, "disable-eviction", false, "delete pods instead of evicting them: passes by disruption\nbudgets, and shuts VMs down instead of moving them")
	f.Int64Var(&o.Drain.GraceSeconds, "grace-period", -1, "seconds that each pod gets to end; negative = the pod's own.\nDoes not cut that of a running VM, see --force-power-off")
	f.BoolVar(&o.Drain.PowerOff, "force-power-off", false, "--grace-period also cuts the grace period of running VMs:\ntheir guests are powered off")
	f.DurationVar(&o.Timeout, "timeout", 0, "give up after this long per node, with exit status 1; 0 = never")
	f.DurationVar(&o.Limits.Pod, "pod-timeout", 0, "how long a pod may take to end once it is evicted: then it\nhas failed, and the others go on; 0 = its grace period and\n2 minutes")
	f.IntVar(&o.Limits.DeleteAfter, "delete-after", 0, "delete a pod after that many evictions refused by disruption\nbudgets; 0 = never. Never a pod of a VM")
	f.DurationVar(&o.Limits.Reattach, "reattach-timeout", drain.ReattachTimeout, "how long to wait for volumes to be attached elsewhere")
	f.StringVarP(&o.Selector, "selector", "l", "", "labels of the nodes to drain")
	f.StringVar(&o.PodSelector, "pod-selector", "", "labels of the pods to evict; others stay")
	f.Int64Var(&o.Drain.SkipDeletedSeconds, "skip-wait-for-delete-timeout", 0, "leave out pods that were deleted more than that many seconds ago")
	f.Int64("chunk-size", 500, "as in kubectl drain, without effect: lists come as streams")
	f.StringVar(&o.DryRun, "dry-run", dryRunNone, "none; client: say what would go; server: ask the API server as well")
	f.Lookup("dry-run").NoOptDefVal = dryRunClient
	f.BoolVar(&o.UncordonOnCancel, "uncordon-on-cancel", false, "on Ctrl-C uncordon the nodes that this run has cordoned")
	f.BoolVar(&o.Cancel, "cancel", false, "drain nothing; take back the marks of the nodes' VMs")
	f.StringVarP(&o.Output, "output", "o", "", "json: one object a line; default: a table on a terminal, else lines")
	f.BoolVar(&o.Version, "version", false, "print the version and exit")
}

func (o *Options) check() error {
	var nodes, pods error
	o.nodeSelector, nodes = labels.Parse(o.Selector)
	o.podSelector, pods = labels.Parse(o.PodSelector)
	switch {
	case o.Version:
		return nil
	case len(o.Nodes) == 0 && o.Selector == "":
		return errors.New("name a node, or nodes by --selector")
	case len(o.Nodes) > 0 && o.Selector != "":
		return errors.New("name nodes or a --selector, not both")
	case nodes != nil:
		return fmt.Errorf("--selector %q: %w", o.Selector, nodes)
	case pods != nil:
		return fmt.Errorf("--pod-selector %q: %w", o.PodSelector, pods)
	case o.DryRun != dryRunNone && o.DryRun != dryRunClient && o.DryRun != dryRunServer:
		return fmt.Errorf("--dry-run %q: must be none, client or server", o.DryRun)
	case o.Output != outputText && o.Output != outputJSON:
		return fmt.Errorf("--output %q: must be json", o.Output)
	default:
		return o.checkLimits()
	}
}

// checkLimits returns an error for a negative limit.
func (o *Options) checkLimits() error {
	switch {
	case o.Timeout < 0:
		return fmt.Errorf("--timeout %v: must not be negative", o.Timeout)
	case o.Limits.Reattach < 0:
		return fmt.Errorf("--reattach-timeout %v: must not be negative", o.Limits.Reattach)
	case o.Limits.Pod < 0:
		return fmt.Errorf("--pod-timeout %v: must not be negative", o.Limits.Pod)
	case o.Limits.DeleteAfter < 0:
		return fmt.Errorf("--delete-after %d: must not be negative", o.Limits.DeleteAfter)
	default:
		return nil
	}
}

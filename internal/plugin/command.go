package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

// Streams are where the commands read and write.
type Streams struct {
	drain.Output

	In io.Reader
}

// session is what a command that runs has.
type session struct {
	Streams

	cfg       *rest.Config
	scheme    *runtime.Scheme
	live      client.Client
	namespace string
}

// subcommand is one command of the plugin.
type subcommand struct {
	use, short, long, examples string
	connection                 *drain.Connection
	flags                      func(*pflag.FlagSet)
	// check returns an error for a wrong command line.
	check func(args []string) error
	run   func(ctx context.Context, s *session, args []string) error
	// names completes the arguments, and values the flags; nil completes nothing.
	names  func(ctx context.Context) []string
	values map[string]func(context.Context) []string
}

const about = `Graceful shutdown and live migration of virtual machines in Kubernetes pods.

Commands:
`

// NewCommand returns kubectl vmgrace. vmdrain.ErrUsage is part of its error if the command
// line is wrong.
func NewCommand(version string, streams Streams) *cobra.Command {
	root := &cobra.Command{
		Use: "kubectl-vmgrace COMMAND", SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q is no command (%w)", args[0], drain.ErrUsage)
			}
			return nil
		},
	}
	printVersion := root.Flags().Bool("version", false, "print the version and exit")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *printVersion { // cobra's would need a text template, and 9 MB more
			fmt.Fprintln(streams.Out, "kubectl-vmgrace", version)
			return nil
		}
		return cmd.Help()
	}
	drain.NoFiles(root, streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(drain.UsageError)
	root.AddCommand(drain.NewCommand("kubectl vmgrace drain", version, streams.Output))
	for _, s := range []*subcommand{newStatus(), newShutdown(), newExtend(), newMigrate(), newCancel(), newWhy()} {
		root.AddCommand(s.command(streams))
	}
	root.SetHelpFunc(func(*cobra.Command, []string) {
		text := about
		for _, c := range root.Commands() {
			if c.IsAvailableCommand() && c.Name() != "help" {
				text += fmt.Sprintf("  %-10s %s\n", c.Name(), c.Short)
			}
		}
		fmt.Fprint(streams.Out, text+"\nUsage:\n  kubectl vmgrace COMMAND [flags]\n\nUse \"kubectl vmgrace COMMAND --help\" for more information about a command.\n")
	})
	return root
}

// agent is the name of the plugin in the API server's log.
const agent = "kubectl-vmgrace"

func newConnection() *drain.Connection { return drain.NewConnection(agent) }

func (c *subcommand) command(streams Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: c.use, Short: c.short, SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error { return drain.UsageError(nil, c.check(args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.open(streams)
			if err != nil {
				return err
			}
			return c.run(cmd.Context(), s, args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	if c.flags != nil {
		c.flags(f)
	}
	help := c.long + "\n\nExamples:\n" + c.examples + "\n\nOptions:\n" + f.FlagUsages() + "\nConnection, as kubectl's:\n" +
		c.connection.Flags.FlagUsages() + "\nUsage:\n  kubectl vmgrace " + c.use + " [options]\n"
	f.AddFlagSet(c.connection.Flags)
	cmd.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprint(streams.Out, help) })
	cmd.SetFlagErrorFunc(drain.UsageError)
	drain.NoFiles(cmd, streams.Out)
	c.connection.AddCompletions(cmd, streams.Out)
	for flag, values := range c.values {
		drain.AddValues(cmd, flag, values)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, named []string, prefix string) (some []string, d cobra.ShellCompDirective) {
		if c.names != nil && len(named) == 0 {
			some = drain.WithPrefix(c.names(cmd.Context()), prefix)
		}
		return some, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// open makes the client.
func (c *subcommand) open(streams Streams) (*session, error) {
	s := &session{Streams: streams}
	var err error
	if s.cfg, err = c.connection.Config(); err != nil {
		return nil, err
	}
	if s.namespace, err = c.connection.Namespace(); err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	if s.live, s.scheme, err = drain.NewClient(s.cfg, false); err != nil {
		return nil, err
	}
	return s, nil
}

// vmNames completes the names of VMs.
func vmNames(c *drain.Connection) func(context.Context) []string {
	return func(ctx context.Context) []string {
		namespace, err := c.Namespace()
		if err != nil {
			return nil
		}
		return c.Names(ctx, kubevirt.GroupVersion().WithResource("virtualmachineinstances"), namespace)
	}
}

// oneVM checks the arguments of a command for one VM.
func oneVM(args []string) error {
	if len(args) != 1 {
		return errors.New("name one VM; its namespace is that of -n")
	}
	_, err := vmName(args[0])
	return err
}

// vmName returns the name in an argument such as vm-1 or vmi/vm-1.
func vmName(arg string) (string, error) {
	kind, name, both := strings.Cut(arg, "/")
	if !both {
		kind, name = "vmi", arg
	}
	switch kind {
	case "vmi", "vmis", "virtualmachineinstance", "virtualmachineinstances":
	default:
		return "", fmt.Errorf("VM %q: say NAME or vmi/NAME, and its namespace by -n", arg)
	}
	if name == "" {
		return "", errors.New("the name of the VM is empty")
	}
	return name, nil
}

// say writes one line.
func (s *session) say(format string, args ...any) { drain.WriteLine(s.Out, format, args...) }

func (s *session) warn(format string, args ...any) {
	drain.WriteLine(s.Err, "Warning: "+format, args...)
}

// vmi reads a VMI.
func (s *session) vmi(ctx context.Context, arg string) (*kubevirt.VirtualMachineInstance, error) {
	name, err := vmName(arg)
	if err != nil {
		return nil, err
	}
	v := &kubevirt.VirtualMachineInstance{}
	if err := s.live.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, v); err != nil {
		return nil, fmt.Errorf("VM %s/%s: %w", s.namespace, name, noKind(err))
	}
	return v, nil
}

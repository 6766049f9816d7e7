package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

func newCancel() *subcommand {
	connection := newConnection()
	return &subcommand{
		use: "cancel VM", short: "Let a VM stay: take back its mark, end its migration",
		long: `Remove the mark of a VM that is to leave its node, and delete its migration. The VM stays where
it is. It is refused while the launcher pod terminates: then the VM would be shut down.
kubectl vmgrace drain --cancel NODE does so for all VMs of a node.`,
		examples:   "  kubectl vmgrace cancel vm-1",
		connection: connection, check: oneVM, names: vmNames(connection),
		run: func(ctx context.Context, s *session, args []string) error {
			name, err := vmName(args[0])
			if err != nil {
				return err
			}
			return drain.CancelVM(ctx, s.cfg, s.Output, s.namespace, name)
		},
	}
}

func newWhy() *subcommand {
	connection, output := drain.NewClusterConnection(agent), ""
	return &subcommand{
		use: "why NODE", short: "Say what keeps a node from being empty",
		long: `Name each pod of a node that an eviction would not end, with the reason: a VM that moves or cannot
move, a disruption budget, a pod that drains leave. It changes nothing: it asks the API server by
evictions without effect. Pods of DaemonSets and static pods do not count.`,
		examples:   "  kubectl vmgrace why worker-3",
		connection: connection,
		flags:      func(f *pflag.FlagSet) { f.StringVarP(&output, "output", "o", "", "json: one object a line") },
		check: func(args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("name one node")
			case output != outputText && output != outputJSON:
				return fmt.Errorf("--output %q: must be json", output)
			default:
				return nil
			}
		},
		names:  connection.Nodes,
		values: map[string]func(context.Context) []string{"output": func(context.Context) []string { return []string{outputJSON} }},
		run: func(ctx context.Context, s *session, args []string) error {
			return drain.Why(ctx, s.cfg, s.Output, output, args[0])
		},
	}
}

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/vmgrace/vmgrace/internal/plugin/drain"
	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
)

// Values of -o.
const (
	outputText = ""
	outputWide = "wide"
	outputJSON = "json"
	outputYAML = "yaml"
)

// status is the command line of kubectl vmgrace status.
type status struct {
	all, watch   bool
	node, output string

	names []string
}

func newStatus() *subcommand {
	o, connection := &status{}, newConnection()
	return &subcommand{
		use: "status [VM...]", short: "Show VMs: shutdowns, time left, migrations",
		long: `Show each VM with its node, phase, grace period, the time that is left of it, whether it can
be moved and why not, whether it is to leave its node (MARK), and its migration. The time
left is shown where the node's agent reports it (condition ShuttingDown of the launcher pod).`,
		examples: `  # The VMs of all namespaces
  kubectl vmgrace status -A

  # Follow the VMs of a node
  kubectl vmgrace status -A --node worker-3 -w

  # For programs
  kubectl vmgrace status vm-1 -o json`,
		connection: connection,
		flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&o.all, "all-namespaces", "A", false, "VMs of all namespaces")
			f.StringVar(&o.node, "node", "", "only VMs of this node")
			f.BoolVarP(&o.watch, "watch", "w", false, "follow changes: a live table on a terminal, else a line for each\nchange; with -o json one object a line")
			f.StringVarP(&o.output, "output", "o", "", "wide, json or yaml")
		},
		check: o.check, run: o.run, names: vmNames(connection),
		values: map[string]func(context.Context) []string{
			"node":   connection.Nodes,
			"output": func(context.Context) []string { return []string{outputWide, outputJSON, outputYAML} },
		},
	}
}

func (o *status) check(args []string) error {
	for _, arg := range args {
		name, err := vmName(arg)
		if err != nil {
			return err
		}
		o.names = append(o.names, name)
	}
	switch {
	case !slices.Contains([]string{outputText, outputWide, outputJSON, outputYAML}, o.output):
		return fmt.Errorf("--output %q: must be wide, json or yaml", o.output)
	case o.watch && o.output == outputYAML:
		return errors.New("--watch with --output yaml: say json")
	case o.all && len(o.names) > 0:
		return errors.New("name VMs or --all-namespaces, not both")
	default:
		return nil
	}
}

func (o *status) run(ctx context.Context, s *session, _ []string) error {
	if o.all {
		s.namespace = ""
	}
	gates := s.unknownGates(ctx)
	if o.watch {
		s.warnOf(gates)
		return drain.Interrupted(ctx, o.follow(ctx, s))
	}
	objects, err := gather(ctx, s.live, s.namespace, s.warn)
	if err != nil {
		return err
	}
	vms := o.chosen(VMs(objects, time.Now()))
	missing := o.missing(s.namespace, vms)
	switch o.output {
	case outputJSON, outputYAML:
		text, err := o.encode(vms, gates)
		if err != nil {
			return err
		}
		fmt.Fprint(s.Out, string(text))
	default:
		if len(vms) > 0 {
			fmt.Fprint(s.Out, Table(vms, o.layout()))
		} else if missing == nil {
			s.say("No VMs found.")
		}
		s.warnOf(gates)
	}
	return missing
}

// chosen returns the VMs that the command line names.
func (o *status) chosen(all []VM) []VM {
	return slices.DeleteFunc(all, func(v VM) bool {
		return o.node != "" && v.Node != o.node || len(o.names) > 0 && !slices.Contains(o.names, v.Name)
	})
}

// missing returns an error that names the VMs that were asked for and are not there.
func (o *status) missing(namespace string, vms []VM) (err error) {
	for _, name := range o.names {
		if !slices.ContainsFunc(vms, func(v VM) bool { return v.Name == name }) {
			err = errors.Join(err, fmt.Errorf("VM %s/%s is not there", namespace, name))
		}
	}
	return err
}

func (o *status) layout() Layout { return Layout{Namespaces: o.all, Wide: o.output == outputWide} }

// encode returns all VMs as one list, with the feature gates that do not exist.
func (o *status) encode(vms []VM, gates []Gate) ([]byte, error) {
	list := struct {
		Items []VM   `json:"items"`
		Gates []Gate `json:"unknownFeatureGates,omitempty"`
	}{vms, gates}
	if o.output == outputYAML {
		return yaml.Marshal(list)
	}
	text, err := json.MarshalIndent(list, "", "    ")
	return append(text, '\n'), err
}

// follow prints the VMs at each change, until ctx ends.
func (o *status) follow(ctx context.Context, s *session) error {
	changed, store, err := s.watch(ctx)
	if err != nil {
		return err
	}
	show := o.newView(s)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		objects, err := gather(ctx, store, s.namespace, s.warn)
		if err != nil {
			return err
		}
		show(o.chosen(VMs(objects, time.Now())))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C: // the time left, and Destroying at the deadline
		}
	}
}

// newView returns a function that prints the VMs if they have changed.
func (o *status) newView(s *session) func([]VM) {
	if size := terminal.Size(s.Out); size != nil && o.output != outputJSON {
		var drawn string
		return func(vms []VM) {
			width, height := size()
			if text := Screen(vms, o.layout(), width-1, height-1); text != drawn {
				fmt.Fprint(s.Out, terminal.Erase(drawn, width, height)+text) // one write, so that it does not flicker
				drawn = text
			}
		}
	}
	last := map[string][]string{} // one that shuts down, and one made anew, may have the same name
	return func(vms []VM) {
		now := map[string][]string{}
		for i := range vms {
			v := &vms[i]
			key, line := v.Namespace+"/"+v.Name, Line(v)
			now[key] = append(now[key], line)
			if !slices.Contains(last[key], line) {
				o.printLine(s, v)
			}
		}
		for key := range last {
			if now[key] == nil && o.output != outputJSON {
				s.say("vm %s: gone", key)
			} else if now[key] == nil {
				o.printLine(s, gone(key))
			}
		}
		last = now
	}
}

func (o *status) printLine(s *session, v *VM) {
	if o.output != outputJSON {
		drain.WriteLine(s.Out, "%s", Line(v))
		return
	}
	_ = json.NewEncoder(s.Out).Encode(v) // the reader has closed the pipe
}

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
)

// migrate is the command line of kubectl vmgrace migrate.
type migrate struct {
	to      string
	wait    bool
	timeout time.Duration
}

func newMigrate() *subcommand {
	o, connection := &migrate{}, newConnection()
	return &subcommand{
		use: "migrate VM", short: "Move a VM to another node, while it runs",
		long: `Create a VirtualMachineInstanceMigration for a VM. Without --to the scheduler chooses the node.
With --wait the exit status is 0 if the VM has moved, and 1 if the migration has failed.`,
		examples: `  # To any other node
  kubectl vmgrace migrate vm-1

  # To this node, and wait for the end
  kubectl vmgrace migrate vm-1 --to worker-3 --wait --timeout=10m`,
		connection: connection,
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&o.to, "to", "", "the node to move it to")
			f.BoolVar(&o.wait, "wait", false, "wait until the migration has ended; Ctrl-C does not cancel it")
			f.DurationVar(&o.timeout, "timeout", 0, "with --wait: give up waiting after this long; 0 = never")
		},
		check: o.check, run: o.run, names: vmNames(connection),
		values: map[string]func(context.Context) []string{"to": connection.Nodes},
	}
}

func (o *migrate) check(args []string) error {
	switch {
	case o.timeout < 0:
		return fmt.Errorf("--timeout %v: must not be negative", o.timeout)
	case o.timeout > 0 && !o.wait:
		return errors.New("--timeout needs --wait")
	default:
		return oneVM(args)
	}
}

func (o *migrate) run(ctx context.Context, s *session, args []string) error {
	v, err := s.vmi(ctx, args[0])
	if err != nil {
		return err
	}
	all := &kubevirt.VirtualMachineInstanceMigrationList{}
	if err := s.live.List(ctx, all, client.InNamespace(v.Namespace)); err != nil {
		return fmt.Errorf("migrations of VM %s/%s: %w", v.Namespace, v.Name, noKind(err))
	}
	if why := whyNotMoved(v, all.Items); why != "" {
		return fmt.Errorf("VM %s/%s cannot be moved: %s", v.Namespace, v.Name, why)
	}
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, GenerateName: "vmgrace-migrate-",
		// It goes with the VMI; of those that have ended cluster-controller keeps the last ones.
		OwnerReferences: []metav1.OwnerReference{{APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: v.Name, UID: v.UID}}}}
	m.Spec.VMIName = v.Name
	if o.to != "" {
		if m.Spec.AddedNodeSelector, err = s.selectorOf(ctx, o.to, v); err != nil {
			return err
		}
	}
	if err := s.live.Create(ctx, m); err != nil {
		return fmt.Errorf("create a migration of VM %s/%s: %w", v.Namespace, v.Name, err)
	}
	s.say("migration/%s created", m.Name)
	if !o.wait {
		return nil
	}
	if o.timeout > 0 {
		bound, cancel := context.WithTimeoutCause(ctx, o.timeout, drain.ErrTimeout)
		defer cancel()
		ctx = bound
	}
	return s.waitFor(ctx, m)
}

// whyNotMoved returns why a migration would fail or wait for another one, or "".
func whyNotMoved(v *kubevirt.VirtualMachineInstance, all []kubevirt.VirtualMachineInstanceMigration) string {
	for i := range all {
		if m := &all[i]; m.Spec.VMIName == v.Name && m.Of(v) && !m.Final() {
			return fmt.Sprintf("migration %s is under way; kubectl vmgrace cancel %s ends it", m.Name, v.Name)
		}
	}
	c := v.Condition(kubevirt.LiveMigratable)
	switch {
	case v.Final():
		return "it has ended: " + string(v.Status.Phase)
	case v.DeletionTimestamp != nil:
		return "it is being deleted"
	case v.Node() == "":
		return "it is on no node yet"
	case c == nil:
		return "it is not known yet whether it can be (condition LiveMigratable); try again in a minute"
	case c.Status != kubevirt.ConditionTrue:
		return strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
	default:
		return ""
	}
}

// selectorOf returns the selector of a node, by its label: it may differ from the name.
func (s *session) selectorOf(ctx context.Context, name string, v *kubevirt.VirtualMachineInstance) (map[string]string, error) {
	n := &corev1.Node{}
	if err := s.live.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return nil, fmt.Errorf("--to %s: %w", name, err)
	}
	hostname := n.Labels[corev1.LabelHostname]
	switch {
	case name == v.Node():
		return nil, fmt.Errorf("--to %s: VM %s/%s is there already", name, v.Namespace, v.Name)
	case hostname == "":
		return nil, fmt.Errorf("--to %s: the node has no label %s", name, corev1.LabelHostname)
	case n.Spec.Unschedulable:
		return nil, fmt.Errorf("--to %s: the node is cordoned; kubectl uncordon %s, or name another one", name, name)
	}
	return map[string]string{corev1.LabelHostname: hostname}, nil
}

// waitFor prints the progress of a migration until it has ended.
func (s *session) waitFor(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration) error {
	changed, store, err := s.watch(ctx)
	if err != nil {
		return s.notAwaited(ctx, m, err)
	}
	show := s.newProgress()
	for {
		is, err := s.migration(ctx, store, m)
		if err != nil {
			return s.notAwaited(ctx, m, err)
		}
		if is.Final() {
			return s.ended(is)
		}
		show(progress(awaited(ctx, store, is)))
		select {
		case <-ctx.Done():
			return s.notAwaited(ctx, m, context.Cause(ctx))
		case <-changed:
		}
	}
}

// migration reads a migration from the watch, which may be behind: that it is gone is only
// proved by the API server.
func (s *session) migration(ctx context.Context, store client.Reader, m *kubevirt.VirtualMachineInstanceMigration) (*kubevirt.VirtualMachineInstanceMigration, error) {
	is, key := &kubevirt.VirtualMachineInstanceMigration{}, client.ObjectKeyFromObject(m)
	err := store.Get(ctx, key, is)
	if apierrors.IsNotFound(err) {
		err = s.live.Get(ctx, key, is)
	}
	switch {
	case apierrors.IsNotFound(err), err == nil && is.UID != m.UID:
		return nil, errDeleted
	case err != nil:
		return nil, fmt.Errorf("migration %s: %w", m.Name, err)
	}
	return is, nil
}

var errDeleted = errors.New("the migration was deleted, which cancels it")

// newProgress returns a function that prints a line if it has changed: in place on a terminal.
func (s *session) newProgress() func(text string) {
	size, last, drawn := terminal.Size(s.Out), "", ""
	return func(text string) {
		switch {
		case text == last:
		case size == nil:
			s.say("%s", text)
		default:
			width, height := size()
			line := terminal.Clip(text, width-1) + "\n"
			fmt.Fprint(s.Out, terminal.Erase(drawn, width, height)+line)
			drawn = line
		}
		last = text
	}
}

// notAwaited returns the error of a wait that ended before the migration.
func (s *session) notAwaited(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration, err error) error {
	if errors.Is(err, errDeleted) {
		return fmt.Errorf("VM %s/%s has not moved: %w", m.Namespace, m.Spec.VMIName, err)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) {
		err = drain.ErrInterrupted
	}
	return fmt.Errorf("%w; migration %s goes on: kubectl vmgrace cancel %s ends it", err, m.Name, m.Spec.VMIName)
}

// awaited describes a migration, with what it waits for where pods may be read.
func awaited(ctx context.Context, store client.Reader, m *kubevirt.VirtualMachineInstanceMigration) *Migration {
	is, targets := migrationOf(m), &corev1.PodList{}
	if store.List(ctx, targets, client.InNamespace(m.Namespace), client.MatchingLabels{kubevirt.MigrationJobLabel: is.uid}) == nil && len(targets.Items) > 0 {
		is.waits([]*corev1.Pod{&targets.Items[0]})
	}
	return is
}

// progress is one line about a migration, which changes with each tenth.
func progress(is *Migration) string {
	text := "migration/" + is.Name + " " + is.Phase + targetOf(is)
	if is.Percent != nil {
		text += fmt.Sprintf(" %s %d%%", terminal.Bar(*is.Percent), *is.Percent/10*10)
	}
	return text
}

// ended prints the result of a migration, and fails if it has failed.
func (s *session) ended(m *kubevirt.VirtualMachineInstanceMigration) error {
	reason, target := "", ""
	if st := m.Status.MigrationState; st != nil {
		reason, target = st.FailureReason, st.TargetNode
	}
	if m.Status.Phase == kubevirt.MigrationFailed {
		if reason == "" {
			reason = "no reason is given"
		}
		return fmt.Errorf("migration %s has failed: %s; no other one is made", m.Name, terminal.Line(reason))
	}
	if target == "" {
		s.say("vmi/%s moved", m.Spec.VMIName)
		return nil
	}
	s.say("vmi/%s moved to %s", m.Spec.VMIName, target)
	return nil
}

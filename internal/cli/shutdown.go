package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// shutdown is the command line of kubectl vmgrace shutdown.
type shutdown struct {
	grace    time.Duration
	graceSet bool
	now, yes bool
}

func newShutdown() *subcommand {
	o, connection := &shutdown{}, newConnection()
	var flags *pflag.FlagSet
	return &subcommand{
		use: "shutdown VM", short: "Shut a VM down, within its grace period or a shorter one",
		long: `Delete a VM's VirtualMachineInstance: its guest is asked to shut down, and destroyed at the end
of its grace period. --grace and --now shorten that, also of a shutdown that is under way:
they delete the launcher pod with this grace period, which counts from the beginning of its
deletion. It asks first, unless --yes is given.`,
		examples: `  # Ask the guest, and give it its whole grace period
  kubectl vmgrace shutdown vm-1

  # At most 10 seconds
  kubectl vmgrace shutdown vm-1 --grace 10s

  # Power it off
  kubectl vmgrace shutdown vm-1 --now -y`,
		connection: connection,
		flags: func(f *pflag.FlagSet) {
			flags = f
			f.DurationVar(&o.grace, "grace", 0, "a shorter grace period than the VM's own")
			f.BoolVar(&o.now, "now", false, "no grace period: the guest is destroyed at once")
			f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
		},
		check: func(args []string) error {
			o.graceSet = flags.Changed("grace")
			return o.check(args)
		},
		run: o.run, names: vmNames(connection),
	}
}

func (o *shutdown) check(args []string) error {
	switch {
	case o.grace < 0:
		return fmt.Errorf("--grace %v: must not be negative", o.grace)
	case o.graceSet && o.now:
		return errors.New("--grace or --now, not both")
	default:
		return oneVM(args)
	}
}

// shortened reports whether the grace period is shortened.
func (o *shutdown) shortened() bool { return o.graceSet || o.now }

func (o *shutdown) run(ctx context.Context, s *session, args []string) error {
	v, err := s.vmi(ctx, args[0])
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return o.alone(ctx, s, args[0], err)
	}
	if err != nil {
		return err
	}
	if v.Final() {
		s.say("vmi/%s has ended already: %s", v.Name, v.Status.Phase)
		return nil
	}
	if c := controller(v); c != "" {
		return fmt.Errorf("VM %s/%s belongs to %s, which would start it again: stop that instead", v.Namespace, v.Name, c)
	}
	if err := o.allowed(v); err != nil {
		return err
	}
	launchers, err := s.launchers(ctx, v)
	if err != nil {
		return err
	}
	if o.shortened() && len(launchers) == 0 {
		return fmt.Errorf("VM %s/%s has no launcher pod on its node, by which a grace period is shortened", v.Namespace, v.Name)
	}
	if !o.yes {
		if err := s.confirm(ctx, o.question(v.Namespace, v.Name, v.Node(), v.Spec.TerminationGracePeriodSeconds)); err != nil {
			return err
		}
	}
	return o.delete(ctx, s, v, launchers)
}

// allowed refuses a grace period longer than the VM's own.
func (o *shutdown) allowed(v *kubevirt.VirtualMachineInstance) error {
	own := v.Spec.TerminationGracePeriodSeconds
	if own != nil && *own >= 0 && o.grace > time.Duration(*own)*time.Second {
		return fmt.Errorf("--grace %v: the grace period of VM %s/%s is %ds, and %s", o.grace, v.Namespace, v.Name, *own, onlyShortened)
	}
	return nil
}

func (o *shutdown) question(namespace, name, node string, own *int64) string {
	how := "its guest is asked, and destroyed at the end of its grace period"
	if own != nil {
		how = fmt.Sprintf("its guest is asked, and destroyed after %ds", *own)
	}
	switch {
	case o.now || o.graceSet && o.grace == 0:
		how = "its guest is destroyed at once"
	case o.graceSet:
		how = fmt.Sprintf("its guest is asked, and destroyed after %v", o.grace)
	}
	return fmt.Sprintf("Shut down VM %s/%s on node %s: %s. Continue? [y/N] ", namespace, name, node, how)
}

// launchers returns the launcher pods of a VM on its node that have not ended.
func (s *session) launchers(ctx context.Context, v *kubevirt.VirtualMachineInstance) (some []corev1.Pod, err error) {
	all := &corev1.PodList{}
	if err := s.live.List(ctx, all, client.InNamespace(v.Namespace), client.MatchingLabels{kubevirt.CreatedByLabel: string(v.UID), kubevirt.AppLabel: kubevirt.LauncherApp}); err != nil {
		return nil, fmt.Errorf("launcher pods of VM %s/%s: %w", v.Namespace, v.Name, err)
	}
	for i := range all.Items {
		if p := &all.Items[i]; !podEnded(p) && p.Spec.NodeName == v.Node() {
			some = append(some, *p)
		}
	}
	return some, nil
}

// killMargin is how long before kubelet's kill of the launcher the agent destroys the guest.
const killMargin = 2

// podGrace returns the grace period of the launcher's deletion, in seconds. It is never 0: that
// would remove the pod without its kubelet. ok is false if the pod is deleted with no longer one
// already.
func (o *shutdown) podGrace(p *corev1.Pod) (seconds int64, ok bool) {
	grace := o.grace
	if o.now {
		grace = 0
	}
	seconds = int64((grace+time.Second-1)/time.Second) + killMargin
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil && *s > 0 {
		seconds = min(seconds, *s)
	}
	is := p.DeletionGracePeriodSeconds
	return seconds, p.DeletionTimestamp == nil || is == nil || *is > seconds
}

// delete deletes first the launcher, if the grace period is shortened: deleted after its VMI, it
// would begin with its own.
func (o *shutdown) delete(ctx context.Context, s *session, v *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) error {
	for i := range launchers {
		p := &launchers[i]
		if c := controller(p); c != "" {
			s.warn("launcher pod %s belongs to %s, which may make another one", p.Name, c)
		}
		seconds, ok := o.podGrace(p)
		if !o.shortened() || !ok {
			continue
		}
		if err := s.deletePod(ctx, p, client.GracePeriodSeconds(seconds)); err != nil {
			return err
		}
	}
	if v.DeletionTimestamp != nil {
		s.say("vmi/%s is being deleted already", v.Name)
		return nil
	}
	if err := s.live.Delete(ctx, v, client.Preconditions{UID: &v.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete VM %s/%s: %w", v.Namespace, v.Name, err)
	}
	s.say("vmi/%s deleted", v.Name)
	return nil
}

func (s *session) deletePod(ctx context.Context, p *corev1.Pod, options ...client.DeleteOption) error {
	err := s.live.Delete(ctx, p, append(options, client.Preconditions{UID: &p.UID})...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete launcher pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.say("pod/%s deleted", p.Name)
	return nil
}

// alone shuts down a VM without a VMI, by the deletion of its launcher pod. notFound is the
// error of reading the VMI.
func (o *shutdown) alone(ctx context.Context, s *session, arg string, notFound error) error {
	name, err := vmName(arg)
	if err != nil {
		return err
	}
	all := &corev1.PodList{}
	if err := s.live.List(ctx, all, client.InNamespace(s.namespace), client.MatchingLabels{kubevirt.AppLabel: kubevirt.LauncherApp}); err != nil {
		return fmt.Errorf("launcher pods of VM %s/%s: %w", s.namespace, name, err)
	}
	pods := slices.DeleteFunc(all.Items, func(p corev1.Pod) bool {
		return p.Labels[kubevirt.CreatedByLabel] != "" || cmp.Or(p.Annotations[kubevirt.DomainAnnotation], p.Name) != name || podEnded(&p)
	})
	switch len(pods) {
	case 0:
		return notFound
	case 1:
	default:
		return fmt.Errorf("VM %s/%s has %d launcher pods, among them %s and %s: kubectl delete pod the one that is meant", s.namespace, name, len(pods), pods[0].Name, pods[1].Name)
	}
	p := &pods[0]
	if c := controller(p); c != "" {
		return fmt.Errorf("VM %s/%s belongs to %s, which would start it again: stop that instead", s.namespace, name, c)
	}
	if !o.yes {
		if err := s.confirm(ctx, o.question(s.namespace, name, p.Spec.NodeName, nil)); err != nil {
			return err
		}
	}
	seconds, ok := o.podGrace(p)
	switch {
	case o.shortened() && ok:
		return s.deletePod(ctx, p, client.GracePeriodSeconds(seconds))
	case p.DeletionTimestamp != nil:
		s.say("pod/%s is being deleted already", p.Name)
		return nil
	default:
		return s.deletePod(ctx, p)
	}
}

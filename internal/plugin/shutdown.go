package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
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
they delete the launcher pod with this grace period, which the agent counts from when it sees
that. It asks first, unless --yes is given.`,
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

// shut is a VM that is to be shut down, as it was read.
type shut struct {
	namespace, name string
	vmi             *kubevirt.VirtualMachineInstance // nil for a VM without one
	launchers       []corev1.Pod                     // on its node, not ended
}

// run asks, and then reads the VM again: what is deleted is what the user was asked about.
func (o *shutdown) run(ctx context.Context, s *session, args []string) error {
	asked, err := o.find(ctx, s, args[0])
	if err != nil {
		return err
	}
	if asked.ended() {
		s.sayEnded(asked)
		return nil
	}
	if !o.yes {
		if err := s.confirm(ctx, o.question(asked)); err != nil {
			return err
		}
	}
	// Another writer makes a deletion fail: then the VM is read again.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := o.find(ctx, s, args[0])
		switch {
		case err != nil:
			return err
		case now.uid() == asked.uid() && now.ended():
			s.sayEnded(now)
			return nil
		case now.uid() != asked.uid() || o.question(now) != o.question(asked):
			return fmt.Errorf("VM %s/%s has changed since it was read: %w", now.namespace, now.name, errDeclined)
		}
		return o.delete(ctx, s, now)
	})
}

// find reads a VM and its launchers, and fails if it cannot be shut down so.
func (o *shutdown) find(ctx context.Context, s *session, arg string) (*shut, error) {
	v, err := s.vmi(ctx, arg)
	if apierrors.IsNotFound(err) {
		return s.alone(ctx, arg, err)
	}
	if err != nil {
		return nil, err
	}
	is := &shut{namespace: v.Namespace, name: v.Name, vmi: v}
	if v.Final() {
		return is, nil
	}
	if c := controller(v); c != "" {
		return nil, is.belongsTo(c)
	}
	if err := o.allowed(v); err != nil {
		return nil, err
	}
	if is.launchers, err = s.launchers(ctx, v); err != nil {
		return nil, err
	}
	if o.shortened() && len(is.launchers) == 0 {
		return nil, fmt.Errorf("VM %s/%s has no launcher pod on its node, by which a grace period is shortened", v.Namespace, v.Name)
	}
	return is, nil
}

func (v *shut) ended() bool { return v.vmi != nil && v.vmi.Final() }

func (s *session) sayEnded(v *shut) {
	s.say("vmi/%s has ended already: %s", v.name, v.vmi.Status.Phase)
}

func (v *shut) belongsTo(controller string) error {
	return fmt.Errorf("VM %s/%s belongs to %s, which would start it again: stop that instead", v.namespace, v.name, controller)
}

// uid returns the UID of the VMI, or of the launcher of a VM without one.
func (v *shut) uid() types.UID {
	if v.vmi != nil {
		return v.vmi.UID
	}
	return v.launchers[0].UID
}

// allowed refuses a grace period longer than the VM's own.
func (o *shutdown) allowed(v *kubevirt.VirtualMachineInstance) error {
	own := stated(v)
	if own != nil && o.grace > time.Duration(*own)*time.Second {
		return fmt.Errorf("--grace %v: the grace period of VM %s/%s is %ds, and %s", o.grace, v.Namespace, v.Name, *own, onlyShortened)
	}
	return nil
}

func (o *shutdown) question(v *shut) string {
	how := "its guest is asked, and destroyed at the end of its grace period"
	var node string
	if v.vmi == nil {
		node = v.launchers[0].Spec.NodeName
	} else {
		node = v.vmi.Node()
		if own := stated(v.vmi); own != nil {
			how = fmt.Sprintf("its guest is asked, and destroyed after %ds", *own)
		}
	}
	switch {
	case o.now || o.graceSet && o.grace == 0:
		how = "its guest is destroyed at once"
	case o.graceSet:
		how = fmt.Sprintf("its guest is asked, and destroyed after %v", o.grace)
	}
	return fmt.Sprintf("Shut down VM %s/%s on node %s: %s. Continue? [y/N] ", v.namespace, v.name, node, how)
}

// launchers returns the launcher pods of a VM on its node that have not ended.
func (s *session) launchers(ctx context.Context, v *kubevirt.VirtualMachineInstance) (some []corev1.Pod, err error) {
	all := &corev1.PodList{}
	if err := s.live.List(ctx, all, client.InNamespace(v.Namespace), client.MatchingLabels{kubevirt.CreatedByLabel: string(v.UID), kubevirt.AppLabel: kubevirt.LauncherApp}); err != nil {
		return nil, fmt.Errorf("launcher pods of VM %s/%s: %w", v.Namespace, v.Name, err)
	}
	for i := range all.Items {
		if p := &all.Items[i]; !drain.Ended(p) && p.Spec.NodeName == v.Node() {
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
// would begin with its own. A VM without a VMI has only the launcher.
func (o *shutdown) delete(ctx context.Context, s *session, v *shut) error {
	for i := range v.launchers {
		p := &v.launchers[i]
		if c := controller(p); c != "" && v.vmi != nil {
			s.warn("launcher pod %s belongs to %s, which may make another one", p.Name, c)
		}
		seconds, ok := o.podGrace(p)
		var options []client.DeleteOption
		switch {
		case o.shortened() && ok:
			options = append(options, client.GracePeriodSeconds(seconds))
		case v.vmi != nil:
			continue
		case p.DeletionTimestamp != nil:
			s.say("pod/%s is being deleted already", p.Name)
			continue
		}
		if err := s.deletePod(ctx, p, options...); err != nil {
			return err
		}
	}
	if v.vmi == nil {
		return nil
	}
	if v.vmi.DeletionTimestamp != nil {
		s.say("vmi/%s is being deleted already", v.name)
		return nil
	}
	if err := s.live.Delete(ctx, v.vmi, asRead(v.vmi)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete VM %s/%s: %w", v.namespace, v.name, err)
	}
	s.say("vmi/%s deleted", v.name)
	return nil
}

// asRead makes a deletion fail if the object has changed since it was read.
func asRead(o client.Object) client.Preconditions {
	return client.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())}
}

func (s *session) deletePod(ctx context.Context, p *corev1.Pod, options ...client.DeleteOption) error {
	err := s.live.Delete(ctx, p, append(options, asRead(p))...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete launcher pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.say("pod/%s deleted", p.Name)
	return nil
}

// alone reads a VM without a VMI, or whose VMI is gone: its launcher pod. notFound is the error of reading the VMI.
func (s *session) alone(ctx context.Context, arg string, notFound error) (*shut, error) {
	name, err := vmName(arg)
	if err != nil {
		return nil, err
	}
	all, err := gather(ctx, s.live, s.namespace, s.warn)
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(all.running()[""], func(p *corev1.Pod) bool { return nameOf(p) != name })
	switch len(pods) {
	case 0:
		return nil, notFound
	case 1:
	default:
		return nil, fmt.Errorf("VM %s/%s has %d launcher pods, among them %s and %s: kubectl delete pod the one that is meant", s.namespace, name, len(pods), pods[0].Name, pods[1].Name)
	}
	v := &shut{namespace: s.namespace, name: name, launchers: []corev1.Pod{*pods[0]}}
	if c := controller(pods[0]); c != "" && pods[0].DeletionTimestamp == nil {
		return nil, v.belongsTo(c)
	}
	return v, nil
}

package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// callTimeout bounds each request, with its retries. The API server waits 10 s at most
// for a webhook.
const callTimeout = 30 * time.Second

// ErrInterrupted is part of Run's error if its context was cancelled.
var ErrInterrupted = errors.New("interrupted")

// ErrTimeout is the cause of a context that --timeout has ended.
var ErrTimeout = errors.New("--timeout is over")

// command is one run of kubectl vmgrace drain.
type command struct {
	*Options

	cfg    *rest.Config
	scheme *runtime.Scheme
	live   client.Client
	show   printer
}

// Run executes the command and prints to out. It fails if a node is not drained, and
// with ErrInterrupted if ctx is cancelled.
func (o *Options) Run(ctx context.Context, out Output) error {
	cfg, err := o.connection.Config()
	if err != nil {
		return err
	}
	c, err := newCommand(o, cfg, newPrinter(out, o.Output))
	if err != nil {
		return err
	}
	return c.run(ctx)
}

func newCommand(o *Options, cfg *rest.Config, show printer) (c *command, err error) {
	c = &command{Options: o, cfg: cfg, show: show}
	if c.live, c.scheme, err = NewClient(cfg, o.DryRun != dryRunNone); err != nil {
		return nil, err
	}
	c.cfg = rest.CopyConfig(cfg)
	c.cfg.Timeout = 0 // a watch is not bounded
	return c, nil
}

// callConfig returns the configuration for requests other than watches.
func callConfig(cfg *rest.Config) *rest.Config {
	calls := rest.CopyConfig(cfg)
	if calls.Timeout == 0 || calls.Timeout > callTimeout {
		calls.Timeout = callTimeout
	}
	calls.Wrap(func(next http.RoundTripper) http.RoundTripper { return &evictionOnce{next} })
	return calls
}

// evictionOnce stops client-go from retrying evictions after a response with
// Retry-After, such as for a budget whose status is not current. The plan decides when
// to retry. client-go retries other requests: an API server that has just started
// refuses lists for a second.
type evictionOnce struct{ next http.RoundTripper }

func (i *evictionOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := i.next.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, "/eviction") {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

func (c *command) run(ctx context.Context) error {
	nodes, err := c.nodes(ctx)
	if err != nil {
		return Interrupted(ctx, err)
	}
	if c.Cancel {
		for i := range nodes {
			err = errors.Join(err, c.cancelMarks(ctx, nodes[i].Name))
		}
		return Interrupted(ctx, err)
	}
	var cordoned []string
	for i := range nodes {
		did, failed := c.cordon(ctx, &nodes[i])
		if did {
			cordoned = append(cordoned, nodes[i].Name)
		}
		err = errors.Join(err, failed)
	}
	if err == nil {
		for i := range nodes {
			if ctx.Err() != nil {
				break
			}
			err = errors.Join(err, c.drain(ctx, &nodes[i]))
		}
	}
	if ctx.Err() != nil && c.UncordonOnCancel {
		err = errors.Join(err, c.uncordon(ctx, cordoned))
	}
	return Interrupted(ctx, err)
}

// Interrupted adds ErrInterrupted if ctx was cancelled, and drops an error that is only
// the cancellation itself.
func Interrupted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return ErrInterrupted
	case errors.Is(err, ErrInterrupted):
		return err
	}
	return errors.Join(err, ErrInterrupted)
}

func (c *command) nodes(ctx context.Context) ([]corev1.Node, error) {
	if c.Selector != "" {
		list := &corev1.NodeList{}
		if err := c.live.List(ctx, list, client.MatchingLabelsSelector{Selector: c.nodeSelector}); err != nil {
			return nil, fmt.Errorf("nodes with %s: %w", c.Selector, err)
		}
		if len(list.Items) == 0 {
			return nil, fmt.Errorf("no node has the labels %s", c.Selector)
		}
		return list.Items, nil
	}
	all := make([]corev1.Node, len(c.Nodes))
	for i, name := range c.Nodes {
		name = nodeName(name)
		if err := c.live.Get(ctx, client.ObjectKey{Name: name}, &all[i]); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	return all, nil
}

// nodeName removes the kind of an argument such as node/worker-1, which kubectl drain
// accepts.
func nodeName(arg string) string {
	if kind, name, both := strings.Cut(arg, "/"); both && slices.Contains([]string{"node", "nodes", "no"}, kind) {
		return name
	}
	return arg
}

// cordon cordons a node, and reports whether this run has done so.
func (c *command) cordon(ctx context.Context, node *corev1.Node) (bool, error) {
	switch {
	case node.Spec.Unschedulable:
		c.show.node(node.Name, "cordoned", "already cordoned")
		return false, nil
	case c.DryRun == dryRunClient:
		c.show.node(node.Name, "cordoned", "cordoned (dry run)")
		return false, nil
	}
	if err := c.setUnschedulable(ctx, node, true); err != nil {
		return false, fmt.Errorf("cordon node %s: %w", node.Name, err)
	}
	if c.DryRun == dryRunServer {
		c.show.node(node.Name, "cordoned", "cordoned (server dry run)")
		return false, nil
	}
	c.show.node(node.Name, "cordoned", "cordoned")
	return true, nil
}

// setUnschedulable patches spec.unschedulable.
func (c *command) setUnschedulable(ctx context.Context, node *corev1.Node, is bool) error {
	before := node.DeepCopy()
	node.Spec.Unschedulable = is
	return c.live.Patch(ctx, node, client.MergeFrom(before))
}

// uncordon uncordons the nodes that this run has cordoned, after an interruption.
func (c *command) uncordon(interrupted context.Context, names []string) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(interrupted), callTimeout)
	defer cancel()
	for _, name := range names {
		node := &corev1.Node{}
		failed := c.live.Get(ctx, client.ObjectKey{Name: name}, node)
		if failed == nil {
			failed = c.setUnschedulable(ctx, node, false)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("uncordon node %s, which stays cordoned: %w", name, failed))
			continue
		}
		c.show.node(name, "uncordoned", "uncordoned")
	}
	return err
}

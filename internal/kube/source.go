package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Source knows the VMIs and launcher pods of this node. Its methods may be
// called from anywhere at any time.
type Source struct {
	clients *clients
	health  *health
	outbox  *outbox
	vmis    *store[*vmi, instance]
	pods    *store[*pod, launcher]
	node    string
}

// New fails only for a configuration that cannot be used. It asks nobody.
func New(cfg Config) (*Source, error) {
	// An empty one would select what is on no node.
	if len(validation.IsDNS1123Subdomain(cfg.Node)) > 0 || len(cfg.Node) > maxLabel {
		return nil, fmt.Errorf("--node-name %q cannot be a node's name in Kubernetes: give the one that kubectl get nodes shows", cfg.Node)
	}
	c, err := newClients(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	changed := func(k vmKey) { cfg.Changed(k.namespace, k.name) }
	return &Source{
		clients: c, node: cfg.Node,
		health: newHealth(cfg.Log, cfg.Now, vmiResource, podResource),
		outbox: newOutbox(cfg.Log, cfg.Shelf),
		vmis: &store[*vmi, instance]{
			strip: func(o *vmi, was instance) instance { return stripVMI(cfg.Node, cfg.Now, o, was.vmi) },
			tell:  func(was, is instance) { changed(cmp.Or(is.name, was.name)) },
		},
		pods: &store[*pod, launcher]{
			strip: func(o *pod, was launcher) launcher { return stripPod(cfg.Node, cfg.Now, o, was.pod) },
			tell: func(was, is launcher) {
				for _, k := range slices.Compact([]vmKey{was.of, is.of}) {
					if k != (vmKey{}) {
						changed(k)
					}
				}
			},
		},
	}, nil
}

// Run watches and delivers until ctx ends; nothing that the API server does
// ends it earlier.
func (s *Source) Run(ctx context.Context) error {
	ctx = quietly(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		reflect(ctx, &source{
			client: s.clients.vmis, resource: vmiResource, health: s.health,
			labels: labels.Set{nodeLabel: s.node}.String(),
			kind:   vmiKind + "List",
			empty: func() (list, func([]byte) error) {
				l := &listOf[vmi, *vmi]{}
				return l, appendTo(&l.Items)
			},
		}, &vmi{}, s.vmis)
	})
	running.Go(func() {
		reflect(ctx, &source{
			client: s.clients.core, resource: podResource, health: s.health,
			labels: labels.Set{launcherLabel: launcherValue}.String(),
			fields: fields.OneTermEqualSelector("spec.nodeName", s.node).String(),
			kind:   podKind + "List",
			empty: func() (list, func([]byte) error) {
				l := &listOf[pod, *pod]{}
				return l, appendTo(&l.Items)
			},
		}, &pod{}, s.pods)
	})
	running.Go(func() { s.outbox.deliver(ctx, s.post) })
	running.Go(func() { s.outbox.keep(ctx) })
	running.Wait()
	s.clients.http.CloseIdleConnections()
	return nil
}

// reflect keeps to like what from lists and watches. It tries again within
// about 5 s, for as long as ctx lasts.
func reflect(ctx context.Context, from *source, what any, to cache.ReflectorStore) {
	cache.NewReflectorWithOptions(from, what, to, cache.ReflectorOptions{
		Logger:  &klog.Logger{},
		Name:    from.resource,
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 3 * time.Second, Steps: 10, Jitter: 0.6},
	}).RunWithContext(ctx)
}

// Up says whether both watches are established, and nothing has failed since.
func (s *Source) Up() bool { return s.health.isUp() }

// Synced says whether the VMIs were listed at least once.
func (s *Source) Synced() bool { return s.vmis.synced() }

// VMI says what the watch shows of a VMI, from memory. One that it does not
// show may be anything: ask Confirm.
func (s *Source) VMI(namespace, name string) (VMI, bool) {
	i, ok := s.vmis.get(vmKey{namespace, name})
	return i.vmi, ok
}

// Pods says what the watch shows of the launcher pods of a VMI, oldest first,
// from memory. They claim to be that; their owner may have written it.
func (s *Source) Pods(namespace, name string) []Pod {
	of := vmKey{namespace, name}
	var pods []Pod
	s.pods.all(func(l launcher) {
		if l.of == of {
			pods = append(pods, l.pod)
		}
	})
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// Report queues an Event. It never blocks.
func (s *Source) Report(e Event) { s.outbox.add(e) }

// Settle waits until the Events of a VM are told, or kept for the next agent,
// or ctx ends.
func (s *Source) Settle(ctx context.Context, namespace, name string) {
	s.outbox.settle(ctx, namespace, name)
}

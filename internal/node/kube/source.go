package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// maxLabel is the maximum length of a label value, and so of a node's name here.
const maxLabel = 63

// Config configures a Source. All fields but Kubeconfig and Moves are required.
type Config struct {
	// Kubeconfig is a file; empty means the service account of the pod.
	Kubeconfig string
	// Node is this node's name.
	Node string
	Log  *slog.Logger
	Now  func() grace.Mono
	// Changed is called with a VMI's namespace and name whenever the result of VMI
	// or Pods may have changed. After the first list of VMIs it is called with empty
	// strings: any result may have changed. It must not block.
	Changed func(namespace, name string)
	// Moves is called like Changed when what KubeVirt says of a VMI's move has changed. Nil
	// means that KubeVirt does not run the VMs: only Beside reads it.
	Moves func(namespace, name string)
}

// Source keeps the VMIs and launcher pods of this node in memory. Its methods may be
// called from any goroutine, and before Open: until then nothing is known, and
// Events wait.
type Source struct {
	client     atomic.Pointer[rest.RESTClient] // nil before Open
	kubeconfig string
	health     *health
	outbox     *outbox
	vmis       *store[vmi]
	pods       *store[pod]
	crds       *store[crd]
	node       string
	now        func() grace.Mono
	changed    func(namespace, name string)
	moves      func(namespace, name string)
	log        *slog.Logger
	writes     writes
	// marked wakes decideDeletions.
	marked chan struct{}
}

// New returns a Source that is not open yet.
func New(cfg Config) *Source {
	s := &Source{
		kubeconfig: cfg.Kubeconfig, node: cfg.Node, now: cfg.Now, changed: cfg.Changed, moves: cfg.Moves, log: cfg.Log,
		health: newHealth(cfg.Log, cfg.Now, vmis(), pods(), crds()),
		outbox: newOutbox(cfg.Log),
		marked: make(chan struct{}, 1),
	}
	s.vmis = &store[vmi]{strip: s.stripVMI, notify: s.vmiChanged}
	s.pods = &store[pod]{strip: s.stripPod, notify: s.podChanged}
	s.crds = &store[crd]{strip: stripCRD, notify: s.crdChanged}
	return s
}

// Open reads the kubeconfig. It fails only for a configuration that cannot be
// used, and may then be called again. It sends no request.
func (s *Source) Open() error {
	// An empty name would select objects that are on no node.
	if len(validation.IsDNS1123Subdomain(s.node)) > 0 || len(s.node) > maxLabel {
		return fmt.Errorf("--node-name %q cannot be a node's name in Kubernetes: give the one that kubectl get nodes shows", s.node)
	}
	c, err := newClient(s.kubeconfig)
	if err != nil {
		return err
	}
	s.client.Store(c)
	return nil
}

// create makes an object.
func (s *Source) create(ctx context.Context, r resource, namespace string, o map[string]any) (answer, error) {
	o["apiVersion"], o["kind"] = r.version().String(), r.kind
	text, err := json.Marshal(o)
	if err != nil {
		return answer{}, fmt.Errorf("encode it: %w", err)
	}
	return ask(ctx, r.of(s.client.Load().Post()).NamespaceIfScoped(namespace, namespace != "").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text))
}

// patchStatus patches the status of an object.
func (s *Source) patchStatus(ctx context.Context, r resource, k key, how types.PatchType, patch any) error {
	return s.patch(ctx, r, k, "status", how, patch)
}

// patch patches an object, or a subresource of it.
func (s *Source) patch(ctx context.Context, r resource, k key, subresource string, how types.PatchType, patch any) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode it: %w", err)
	}
	a, err := ask(ctx, r.of(s.client.Load().Patch(how)).NamespaceIfScoped(k.namespace, k.namespace != "").Name(k.name).SubResource(subresource).Body(text))
	if err != nil {
		return err
	}
	return a.expect(http.StatusOK)
}

func (s *Source) vmiChanged(was, is vmi) {
	if is.undecided() {
		wake(s.marked)
	}
	name := cmp.Or(is.name, was.name)
	switch {
	case was.VMI != is.VMI || was.whose != is.whose || was == is:
		s.changed(name.namespace, name.name)
	case was.beside != is.beside && s.moves != nil:
		s.moves(name.namespace, name.name)
	}
}

func (s *Source) podChanged(was, is pod) {
	if is.static && !was.static {
		s.log.Warn("a launcher that is a static pod is not guarded: kubelet keeps its volume by another name than its UID; have the API server make it",
			"namespace", is.of.namespace, "name", is.of.name, "uid", is.UID)
	}
	for _, k := range slices.Compact([]key{was.of, is.of}) {
		if k != (key{}) {
			s.changed(k.namespace, k.name)
		}
	}
}

func (s *Source) crdChanged(was, is crd) {
	wake(s.marked)
	if is.ending && !was.ending {
		s.log.Warn("the CRD of the VMIs is being deleted, and all VMIs with it; that shuts down no VM", "crd", kubevirt.CRD)
	}
}

// wake never blocks: a receiver that is already woken looks at everything.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run watches and delivers Events until ctx ends. Nothing that the API server does
// ends it earlier. It is called after Open.
func (s *Source) Run(ctx context.Context) error {
	node := fields.OneTermEqualSelector("spec.nodeName", s.node).String()
	var running sync.WaitGroup
	for _, w := range []struct {
		of             resource
		labels, fields string
		to             cache.ReflectorStore
	}{
		{crds(), "", fields.OneTermEqualSelector("metadata.name", kubevirt.CRD).String(), s.crds},
		{vmis(), labels.Set{kubevirt.NodeNameLabel: s.node}.String(), "", s.vmis},
		{pods(), labels.Set{kubevirt.AppLabel: kubevirt.LauncherApp}.String(), node, s.pods},
	} {
		from := &source{client: s.client.Load(), resource: w.of, labels: w.labels, fields: w.fields, health: s.health}
		running.Go(func() { reflect(ctx, from, w.to) })
	}
	running.Go(func() { s.decideDeletions(ctx) })
	running.Go(func() { s.outbox.deliver(ctx, s.post) })
	running.Wait()
	s.client.Load().Client.CloseIdleConnections()
	return nil
}

// reflect keeps the store to up to date with what from lists and watches. It retries
// within about 5 s until ctx ends.
func reflect(ctx context.Context, from *source, to cache.ReflectorStore) {
	lw := &cache.ListWatch{ListWithContextFunc: from.list, WatchFuncWithContext: from.watch}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, from), &object{}, to, cache.ReflectorOptions{
		Name:    from.resource.plural,
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 3 * time.Second, Steps: 10, Jitter: 0.6},
	}).RunWithContext(ctx)
}

// Up returns whether all watches are established, and none has failed since.
func (s *Source) Up() bool { return s.health.isUp() }

// VMI returns what the watch shows of a VMI, from memory. A VMI that it does not
// show is unknown until the first list, and absent after it, as is one whose name a VM
// has that is not its. Absent proves nothing: ask Confirm.
func (s *Source) VMI(namespace, name string) grace.VMI {
	listed := s.vmis.synced() // read before get
	v, ok := s.vmis.get(key{namespace, name})
	if !ok && listed || ok && s.others(v) {
		return grace.VMI{State: grace.VMIAbsent}
	}
	return v.VMI
}

// others reports whether the VM with the name of a VMI is another's, such as one made after the
// VMI's has ended: pods that name it live here, and it owns none of them.
func (s *Source) others(v vmi) bool {
	others, own := false, false
	s.pods.all(func(p pod) {
		if p.of == v.name && !p.Done {
			is := v.whose.Owns(launcherpod.Pod{UID: p.UID, VMI: p.VMI, Created: p.Created})
			own, others = own || is, others || !is && p.VMI == ""
		}
	})
	return others && !own
}

// Pods returns the launcher pods that claim this VMI, oldest first, from memory. The
// pod's owner may have written the claim.
func (s *Source) Pods(namespace, name string) []grace.Pod {
	of := key{namespace, name}
	var found []grace.Pod
	s.pods.all(func(p pod) {
		if p.of == of {
			found = append(found, p.Pod)
		}
	})
	slices.SortFunc(found, func(a, b grace.Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	return found
}

// Target reports whether a launcher pod of a domain was made as the target of a migration.
func (s *Source) Target(domain, uid string) bool {
	target := false
	s.podsOf(domain, func(p pod) { target = target || p.UID == uid && p.target })
	return target
}

// None reports whether the watch shows no launcher pod of a domain, once it has listed them.
func (s *Source) None(domain string) bool {
	none := s.pods.synced() // read before the pods
	s.podsOf(domain, func(pod) { none = false })
	return none
}

func (s *Source) podsOf(domain string, visit func(pod)) {
	namespace, name, _ := grace.SplitDomainName(domain)
	of := key{namespace, name}
	s.pods.all(func(p pod) {
		if p.of == of {
			visit(p)
		}
	})
}

// Report queues an Event. It never blocks.
func (s *Source) Report(e agent.Event) {
	if e.OfNode {
		// Like kubelet's Events: kubectl describe node asks for the name as the UID.
		e.Namespace, e.Name, e.UID = metav1.NamespaceDefault, s.node, s.node
	}
	s.outbox.add(e)
}

// FlushEvents waits until the API server has the Events of a VM, or ctx ends.
func (s *Source) FlushEvents(ctx context.Context, namespace, name string) {
	s.outbox.flush(ctx, namespace, name)
}

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// syncTimeout bounds the first list of what is watched.
const syncTimeout = 30 * time.Second

// phaseGone is that of a VM that the last line is about.
const phaseGone = "Gone"

func gone(key string) *VM {
	namespace, name, _ := strings.Cut(key, "/")
	return &VM{Namespace: namespace, Name: name, Phase: phaseGone, LiveMigratable: "Unknown"}
}

// watch starts the watches of what status shows, and returns once they are synced. They end
// with ctx. The channel gets a value after each change.
func (s *session) watch(ctx context.Context) (<-chan struct{}, client.Reader, error) {
	cfg := rest.CopyConfig(s.cfg)
	cfg.Timeout = 0 // a watch is not bounded
	options := cache.Options{
		Scheme: s.scheme, ReaderFailOnMissingInformer: true, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{kubevirt.AppLabel: kubevirt.LauncherApp})},
		},
	}
	if s.namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{s.namespace: {}}
	}
	store, err := cache.New(cfg, options)
	if err != nil {
		return nil, nil, fmt.Errorf("watch: %w", err)
	}
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default: // one is enough: the loop reads everything
		}
	}
	for _, k := range new(lists).kinds() {
		// An informer would retry for ever without the right to read its kind.
		err := s.live.List(ctx, k.list, append(k.options, client.InNamespace(s.namespace), client.Limit(1))...)
		if k.optional && (apierrors.IsForbidden(err) || meta.IsNoMatchError(err)) {
			s.warn("%s are not shown: %v", k.what, err)
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list %s: %w", k.what, noKind(err))
		}
		informer, err := store.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, nil, fmt.Errorf("watch %s: %w", k.what, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
		}); err != nil {
			return nil, nil, fmt.Errorf("watch %s: %w", k.what, err)
		}
	}
	go func() { _ = store.Start(ctx) }() // it fails only when started twice
	bound, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !store.WaitForCacheSync(bound) {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, errors.New("the API server did not list the VMs within " + syncTimeout.String())
	}
	return changed, store, nil
}

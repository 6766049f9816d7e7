package index

import (
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// AfterStart filters out objects that exist when a controller starts. It is for what a controller
// watches beside the objects that it reconciles: it looks at each of these at its start, when the
// caches have the others. In a large cluster a new leader would else look up the VM of each pod
// before it decides anything.
func AfterStart() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
}

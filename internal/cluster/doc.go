// Package cluster is the program cluster-controller: its flags, and the
// wiring of its webhooks and controllers.
//
// Decisions are made in internal/rules/evacuation, internal/rules/migration and internal/rules/taints. The packages
// below this one gather the inputs and act. They, this one, internal/plugin/drain and
// internal/plugin are the only ones that import controller-runtime.
package cluster

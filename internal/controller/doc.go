// Package controller is the program cluster-controller: its flags, and the
// wiring of its webhooks and controllers.
//
// Decisions are made in internal/evacuation, internal/migration and internal/replacement. The packages
// below this one gather the inputs and act. They, this one, internal/vmdrain and
// internal/cli are the only ones that import controller-runtime.
package controller

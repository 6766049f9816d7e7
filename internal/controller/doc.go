// Package controller is the program cluster-controller: its flags, and the
// wiring of its webhooks and controllers.
//
// What is decided is decided in pkg/evacuation. The packages below this one
// gather what the rules want to know, and act. They, and this one, are the only
// ones that know controller-runtime.
package controller

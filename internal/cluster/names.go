package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// Names of what --controllers chooses from.
const (
	evictionWebhook   = "eviction-webhook"
	launcherWebhook   = "launcher-webhook"
	launchers         = "launcher"
	disruptionBudgets = "disruption-budgets"
	evacuations       = "evacuation"
	migrations        = "migration"
	podDisruption     = "pod-disruption"
	taintReplacement  = "taint-replacement"
	estimates         = "estimate"
)

func names() []string {
	return []string{evictionWebhook, launcherWebhook, launchers, disruptionBudgets, evacuations, migrations, podDisruption, taintReplacement, estimates}
}

// besideKubeVirt reports whether the controller runs with --beside-kubevirt.
func besideKubeVirt(name string) bool {
	return name == launcherWebhook || name == podDisruption || name == taintReplacement
}

func listNames() string { return strings.Join(names(), ", ") }

func checkNames(chosen []string) error {
	for _, c := range chosen {
		if c != "*" && !slices.Contains(names(), strings.TrimPrefix(c, "-")) {
			return fmt.Errorf("--controllers: %q is not one of *, %s", c, listNames())
		}
	}
	return nil
}

// enabled applies kube-controller-manager's rule: the first item that names the
// controller counts, otherwise whether there is a *.
func enabled(name string, chosen []string) bool {
	for _, c := range chosen {
		switch c {
		case name:
			return true
		case "-" + name:
			return false
		}
	}
	return slices.Contains(chosen, "*")
}

// runs reports whether a controller runs with these flags.
func (o *Options) runs(name string) bool {
	return enabled(name, o.Controllers) && (!o.BesideKubeVirt || besideKubeVirt(name))
}

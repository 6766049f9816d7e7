package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// maxSeconds is the largest value of settings in seconds: a year.
const maxSeconds = 365 * 24 * 3600

// WithKubeVirt returns the settings with those of the KubeVirt object, which may be nil. A
// missing field has its default. An invalid one keeps the value in s, and has a message in
// invalid: its path, its value, what is allowed, and the value in force.
func (s Settings) WithKubeVirt(kv *kubevirt.KubeVirt) (next Settings, invalid []string) {
	var c kubevirt.KubeVirtConfiguration
	if kv != nil {
		c = kv.Spec.Configuration
	}
	next = s
	def := Defaults()
	refuse := func(field string, value any, allowed string, stays any) {
		invalid = append(invalid, fmt.Sprintf("%s: %v is not %s: %v stays in force", field, value, allowed, stays))
	}

	switch {
	case c.EvictionStrategy == nil:
		next.EvictionStrategy = def.EvictionStrategy
	case *c.EvictionStrategy == "" || knownStrategy(*c.EvictionStrategy):
		next.EvictionStrategy = *c.EvictionStrategy
	default:
		refuse("spec.configuration.evictionStrategy", fmt.Sprintf("%q", oneline.Cut(string(*c.EvictionStrategy), shortText)),
			"None, LiveMigrate, LiveMigrateIfPossible or External", cmp.Or(s.EvictionStrategy, kubevirt.StrategyNone))
	}

	next.FeatureGates = nil
	if c.DeveloperConfiguration != nil {
		next.FeatureGates = slices.Clone(c.DeveloperConfiguration.FeatureGates)
	}

	if m := c.MigrationConfiguration; m != nil {
		next.limits(*m, refuse)
	} else {
		next.limits(kubevirt.MigrationConfiguration{}, refuse)
	}
	return next, invalid
}

// limits applies the settings of migrations, and calls refuse for invalid ones.
func (s *Settings) limits(m kubevirt.MigrationConfiguration, refuse func(field string, value any, allowed string, stays any)) {
	def := Defaults()
	const path = "spec.configuration.migrations."
	count := func(name string, to *int, value *int64, def int) {
		switch {
		case value == nil:
			*to = def
		case *value < 1 || *value > 1<<20:
			refuse(path+name, *value, "a number from 1 to 1048576", *to)
		default:
			*to = int(*value)
		}
	}
	seconds := func(name string, to *time.Duration, value *int64, def time.Duration) {
		switch {
		case value == nil:
			*to = def
		case *value < 1 || *value > maxSeconds:
			refuse(path+name, *value, "a number of seconds from 1 to a year", *to)
		default:
			*to = time.Duration(*value) * time.Second
		}
	}
	count("parallelMigrationsPerCluster", &s.PerCluster,
		m.ParallelMigrationsPerCluster, def.PerCluster)
	count("parallelOutboundMigrationsPerNode", &s.PerNode,
		m.ParallelOutboundMigrationsPerNode, def.PerNode)
	seconds("completionTimeoutPerGiB", &s.CompletionPerGiB,
		m.CompletionTimeoutPerGiB, def.CompletionPerGiB)
	seconds("progressTimeout", &s.ProgressTimeout, m.ProgressTimeout, def.ProgressTimeout)

	if b := m.BandwidthPerMigration; b == nil {
		s.Bandwidth = def.Bandwidth
	} else if n, err := b.Value(); err != nil || n < 0 {
		refuse(path+"bandwidthPerMigration", oneline.Cut(string(*b), shortText), "a quantity of bytes per second, or 0 for no limit", s.Bandwidth)
	} else {
		s.Bandwidth = n
	}
	s.AllowAutoConverge = m.AllowAutoConverge != nil && *m.AllowAutoConverge
	switch key := m.NodeDrainTaintKey; {
	case key == nil:
		s.DrainTaint = def.DrainTaint
	case !taintKey(*key):
		refuse(path+"nodeDrainTaintKey", fmt.Sprintf("%q", oneline.Cut(*key, shortText)), "the key of a taint", s.DrainTaint)
	default:
		s.DrainTaint = *key
	}
}

// WithPolicy returns the settings with those of the EvacuationPolicy, like WithKubeVirt.
func (s Settings) WithPolicy(policy *v1alpha1.EvacuationPolicy) (next Settings, invalid []string) {
	var p v1alpha1.EvacuationPolicySpec
	if policy != nil {
		p = policy.Spec
	}
	next = s
	var statedLauncherPadding, statedMigrationAllowance, statedPauseAfter *time.Duration
	if p.LauncherPadding != nil {
		statedLauncherPadding = &p.LauncherPadding.Duration
	}
	if p.MigrationAllowance != nil {
		statedMigrationAllowance = &p.MigrationAllowance.Duration
	}
	if p.PauseAfter != nil {
		statedPauseAfter = &p.PauseAfter.Duration
	}
	duration := func(name string, to *time.Duration, value *time.Duration, def time.Duration) {
		switch {
		case value == nil:
			*to = def
		case *value < 0 || *value > maxSeconds*time.Second:
			invalid = append(invalid, fmt.Sprintf("spec.%s: %v is not a time from 0s to a year: %v stays in force", name, *value, *to))
		default:
			*to = *value
		}
	}
	duration("launcherPadding", &next.LauncherPadding, statedLauncherPadding, v1alpha1.DefaultLauncherPadding)
	duration("migrationAllowance", &next.MigrationAllowance, statedMigrationAllowance, v1alpha1.DefaultMigrationAllowance)
	duration("pauseAfter", &next.PauseAfter, statedPauseAfter, next.MigrationAllowance/2)
	return next, append(invalid, next.attempts(&p)...)
}

// attempts applies the policy's numbers of migrations and attempts, like WithPolicy.
func (s *Settings) attempts(p *v1alpha1.EvacuationPolicySpec) (invalid []string) {
	count := func(name string, to *int, value *int32, least, def int) {
		switch {
		case value == nil:
			*to = def
		case int(*value) < least || *value > 1<<20:
			invalid = append(invalid, fmt.Sprintf("spec.%s: %d is not a number from %d to 1048576: %d stays in force", name, *value, least, *to))
		default:
			*to = int(*value)
		}
	}
	count("maxAttempts", &s.MaxAttempts, p.MaxAttempts, 0, 0)
	count("parallelInboundMigrationsPerNode", &s.PerTarget, p.ParallelInboundMigrationsPerNode, 1, v1alpha1.DefaultParallelInbound)
	count("parallelHeldMigrations", &s.Held, p.ParallelHeldMigrations, 1, 0)
	switch p.AfterAttempts {
	case "", v1alpha1.AfterAttemptsWait, v1alpha1.AfterAttemptsShutdown:
		s.ShutdownAfter = p.AfterAttempts == v1alpha1.AfterAttemptsShutdown
	default:
		invalid = append(invalid, fmt.Sprintf("spec.afterAttempts: %q is not Wait or Shutdown: the last valid value stays in force", oneline.Cut(p.AfterAttempts, shortText)))
	}
	return invalid
}

// Oldest returns the oldest KubeVirt, whose settings apply, and the others. counts is nil if
// there is none.
func Oldest(all []kubevirt.KubeVirt) (counts *kubevirt.KubeVirt, others []kubevirt.KubeVirt) {
	if len(all) == 0 {
		return nil, nil
	}
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b kubevirt.KubeVirt) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return &sorted[0], sorted[1:]
}

// The lengths to which texts of others are cut: a user's in a setting, and a message.
const (
	shortText   = 64
	longMessage = 256
)

// taintKey reports whether key is valid for a taint: a name, optionally after a domain and a
// slash.
func taintKey(key string) bool {
	domain, name, two := strings.Cut(key, "/")
	if !two {
		domain, name = "x", key
	}
	const least, most = 1, 253
	return len(domain) >= least && len(domain) <= most && len(name) >= least && len(name) <= 63 &&
		strings.Trim(domain+name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == ""
}

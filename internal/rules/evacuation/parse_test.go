package evacuation

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

func kubeVirt(t *testing.T, configuration string) *kubevirt.KubeVirt {
	t.Helper()
	kv := &kubevirt.KubeVirt{}
	if err := yaml.UnmarshalStrict([]byte(configuration), &kv.Spec.Configuration); err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestSettingsOfKubeVirt(t *testing.T) {
	all := `
evictionStrategy: LiveMigrate
developerConfiguration: {featureGates: [Other, PreemptionEvictionLiveMigration]}
migrations:
  parallelMigrationsPerCluster: 7
  parallelOutboundMigrationsPerNode: 3
  bandwidthPerMigration: 64Mi
  completionTimeoutPerGiB: 10
  progressTimeout: 20
  allowAutoConverge: true
  nodeDrainTaintKey: example.org/empty
`
	want := Defaults()
	want.EvictionStrategy, want.FeatureGates = kubevirt.StrategyLiveMigrate, []string{"Other", GatePreemption}
	want.PerCluster, want.PerNode, want.Bandwidth = 7, 3, 64<<20
	want.CompletionPerGiB, want.ProgressTimeout = 10*time.Second, 20*time.Second
	want.AllowAutoConverge, want.DrainTaint = true, "example.org/empty"

	got, bad := Defaults().WithKubeVirt(kubeVirt(t, all))
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("refused %v, difference:\n%s", bad, diff)
	}
	t.Run("what is no longer stated is the default", func(t *testing.T) {
		for _, kv := range []*kubevirt.KubeVirt{nil, {}} {
			if back, _ := got.WithKubeVirt(kv); !cmp.Equal(back, Defaults()) {
				t.Errorf("%s", cmp.Diff(Defaults(), back))
			}
		}
	})
	t.Run("what is no quantity hides nothing else", func(t *testing.T) {
		for _, word := range []string{`"soon"`, `[1]`, `{}`, `""`, `true`, `"-1"`} {
			next, bad := got.WithKubeVirt(kubeVirt(t, "evictionStrategy: External\nmigrations: {bandwidthPerMigration: "+word+"}"))
			if len(bad) != 1 || next.EvictionStrategy != kubevirt.StrategyExternal || next.Bandwidth != got.Bandwidth {
				t.Errorf("%s: %+v, refused %v", word, next, bad)
			}
		}
		if next, bad := got.WithKubeVirt(kubeVirt(t, "migrations: {bandwidthPerMigration: 12345678901}")); len(bad) > 0 || next.Bandwidth != 12345678901 {
			t.Errorf("a number: %d, refused %v", next.Bandwidth, bad)
		}
	})
	t.Run("what is invalid stays as it was, the rest counts", func(t *testing.T) {
		next, bad := got.WithKubeVirt(kubeVirt(t, `
evictionStrategy: Explode
migrations:
  parallelMigrationsPerCluster: 0
  parallelOutboundMigrationsPerNode: -3
  bandwidthPerMigration: "-1"
  completionTimeoutPerGiB: -1
  progressTimeout: 999999999999999
  nodeDrainTaintKey: "not a key"
`))
		want := got
		want.FeatureGates, want.AllowAutoConverge = nil, false
		if diff := cmp.Diff(want, next); diff != "" {
			t.Error(diff)
		}
		if len(bad) != 7 {
			t.Errorf("%d of 7 are reported: %v", len(bad), bad)
		}
		for _, b := range bad {
			if !strings.HasPrefix(b, "spec.configuration.") || !strings.Contains(b, "stays in force") {
				t.Errorf("%q does not name the field, or the value in force", b)
			}
		}
	})
}

func TestSettingsOfPolicy(t *testing.T) {
	d := func(x time.Duration) *metav1.Duration { return &metav1.Duration{Duration: x} }
	policy := &v1alpha1.EvacuationPolicy{Spec: v1alpha1.EvacuationPolicySpec{LauncherPadding: d(5 * time.Second), MigrationAllowance: d(time.Minute)}}
	got, bad := Defaults().WithPolicy(policy)
	if len(bad) > 0 || got.LauncherPadding != 5*time.Second || got.MigrationAllowance != time.Minute || got.PauseAfter != 30*time.Second {
		t.Errorf("%+v, refused %v", got, bad)
	}
	policy.Spec.LauncherPadding, policy.Spec.PauseAfter = d(-time.Second), d(400*24*time.Hour)
	after, bad := got.WithPolicy(policy)
	if len(bad) != 2 || !cmp.Equal(after, got) {
		t.Errorf("refused %v, and %s", bad, cmp.Diff(got, after))
	}
	if back, _ := got.WithPolicy(nil); !cmp.Equal(back, Defaults()) {
		t.Errorf("without a policy: %s", cmp.Diff(Defaults(), back))
	}
}

func TestOldest(t *testing.T) {
	one := func(name string, second int) kubevirt.KubeVirt {
		kv := kubevirt.KubeVirt{}
		kv.Namespace, kv.Name, kv.CreationTimestamp = "ns", name, at(second)
		return kv
	}
	counts, others := Oldest([]kubevirt.KubeVirt{one("c", 2), one("b", 1), one("a", 1)})
	if counts.Name != "a" || len(others) != 2 {
		t.Errorf("%s counts, %d do not", counts.Name, len(others))
	}
	if counts, others := Oldest(nil); counts != nil || others != nil {
		t.Error("of none one counts")
	}
}

func TestStrategy(t *testing.T) {
	states := func(s kubevirt.EvictionStrategy) *kubevirt.VirtualMachineInstance {
		return vmi(func(v *kubevirt.VirtualMachineInstance) { v.Spec.EvictionStrategy = &s })
	}
	for name, c := range map[string]struct {
		cluster kubevirt.EvictionStrategy
		vmi     *kubevirt.VirtualMachineInstance
		want    kubevirt.EvictionStrategy
		known   bool
	}{
		"neither states one":             {"", vmi(), kubevirt.StrategyNone, true},
		"the cluster's":                  {kubevirt.StrategyExternal, vmi(), kubevirt.StrategyExternal, true},
		"the VMI's before the cluster's": {kubevirt.StrategyExternal, states(kubevirt.StrategyNone), kubevirt.StrategyNone, true},
		"an empty one states none":       {kubevirt.StrategyLiveMigrate, states(""), kubevirt.StrategyLiveMigrate, true},
		"an unknown word":                {kubevirt.StrategyLiveMigrate, states("Explode"), kubevirt.StrategyNone, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, unknown := StrategyOf(c.vmi, c.cluster); got != c.want || (unknown == "") != c.known {
				t.Errorf("%s, unknown %q; want %s, known %v", got, unknown, c.want, c.known)
			}
		})
	}
}

func TestAttemptsAndLimitsOfThePolicy(t *testing.T) {
	policy := &v1alpha1.EvacuationPolicy{}
	got, bad := Defaults().WithPolicy(policy)
	if len(bad) > 0 || got.PerTarget != 4 || got.Held != 0 || got.MaxAttempts != 0 || got.ShutdownAfter {
		t.Errorf("%v; defaults: %+v", bad, got)
	}
	policy.Spec.MaxAttempts, policy.Spec.AfterAttempts = new(int32(3)), v1alpha1.AfterAttemptsShutdown
	policy.Spec.ParallelInboundMigrationsPerNode, policy.Spec.ParallelHeldMigrations = new(int32(2)), new(int32(7))
	got, bad = got.WithPolicy(policy)
	if len(bad) > 0 || got.PerTarget != 2 || got.Held != 7 || got.MaxAttempts != 3 || !got.ShutdownAfter {
		t.Errorf("%v; %+v", bad, got)
	}
	policy.Spec.MaxAttempts, policy.Spec.AfterAttempts = new(int32(-1)), "Explode"
	policy.Spec.ParallelInboundMigrationsPerNode, policy.Spec.ParallelHeldMigrations = new(int32(0)), new(int32(-7))
	after, bad := got.WithPolicy(policy)
	if len(bad) != 4 || after.PerTarget != 2 || after.Held != 7 || after.MaxAttempts != 3 || !after.ShutdownAfter {
		t.Errorf("the last valid values do not stay: %v, %+v", bad, after)
	}
}

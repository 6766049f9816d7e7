package evacuation

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Annotations of a launcher pod whose shutdown the node agent may hold.
const (
	HoldForAnnotation = "vmgrace.io/hold-for"                 // reasons, separated by commas
	ReserveAnnotation = "vmgrace.io/shutdown-reserve-seconds" // the longest duration of a shutdown
	// AllowanceAnnotation is the longest time of a hold. PaddingAnnotation is the part of
	// the reserve that exceeds the VM's grace period, which may be changed later. The
	// agents do not read the settings themselves.
	AllowanceAnnotation = "vmgrace.io/migration-allowance-seconds"
	PaddingAnnotation   = "vmgrace.io/launcher-padding-seconds"
)

// HoldAnnotations returns the names of all annotations above.
func HoldAnnotations() []string {
	return []string{HoldForAnnotation, ReserveAnnotation, AllowanceAnnotation, PaddingAnnotation}
}

// DefaultGracePeriod is the grace period of VMs without one.
const DefaultGracePeriod = 30 * time.Second

// maxGraceSeconds is 100 years, as for the agents: no sum overflows, here or in the API
// server.
const maxGraceSeconds = 100 * 365 * 24 * 60 * 60

// LauncherGrace is what a launcher pod needs so that its VM gets its whole grace period.
type LauncherGrace struct {
	Seconds     int64             // for terminationGracePeriodSeconds
	Annotations map[string]string // HoldAnnotations; nil if its shutdown is never held
}

// GraceFor computes the LauncherGrace of a pod with stated seconds. nil means the API
// server's default. GraceFor is idempotent.
func GraceFor(vmi *kubevirt.VirtualMachineInstance, stated *int64, s *Settings) LauncherGrace {
	has := int64(DefaultGracePeriod / time.Second) // the API server's default, too
	if stated != nil {
		has = *stated
	}
	padding := min(wholeSeconds(s.LauncherPadding), maxGraceSeconds)
	reserve := min(min(graceSeconds(vmi), maxGraceSeconds)+padding, maxGraceSeconds)
	g := LauncherGrace{Seconds: max(has, reserve)}
	reasons := holdReasons(s)
	if strategy, _ := StrategyOf(vmi, s.EvictionStrategy); len(reasons) > 0 && migrates(strategy) {
		allowance := min(wholeSeconds(s.MigrationAllowance), maxGraceSeconds)
		g.Seconds = max(has, min(reserve+allowance, maxGraceSeconds))
		g.Annotations = map[string]string{
			HoldForAnnotation: strings.Join(reasons, ","), ReserveAnnotation: strconv.FormatInt(reserve, 10),
			AllowanceAnnotation: strconv.FormatInt(allowance, 10), PaddingAnnotation: strconv.FormatInt(padding, 10),
		}
	}
	return g
}

// Holds reports whether any shutdown may be held.
func (s *Settings) Holds() bool { return len(holdReasons(s)) > 0 }

// GraceBeside is GraceFor where KubeVirt makes the launcher pods: the grace period that it has
// stated is part of the reserve, and the allowance is added to it. allowed is the pod's
// AllowanceAnnotation if stated has that allowance already, else "".
func GraceBeside(vmi *kubevirt.VirtualMachineInstance, stated *int64, allowed string, s *Settings) LauncherGrace {
	has := int64(DefaultGracePeriod / time.Second)
	if stated != nil {
		has = min(*stated, maxGraceSeconds)
	}
	if d, ok := parseSeconds(allowed); ok {
		has = max(has-int64(d/time.Second), 0)
	}
	g := GraceFor(vmi, &has, s)
	if g.Annotations == nil {
		return g
	}
	padding := min(wholeSeconds(s.LauncherPadding), maxGraceSeconds)
	reserve := min(max(has, min(graceSeconds(vmi), maxGraceSeconds)+padding), maxGraceSeconds)
	g.Seconds = min(reserve+min(wholeSeconds(s.MigrationAllowance), maxGraceSeconds), maxGraceSeconds)
	g.Annotations[ReserveAnnotation] = strconv.FormatInt(reserve, 10)
	return g
}

// graceSeconds returns the VM's grace period. A negative or missing one is the default,
// as for the agents.
func graceSeconds(vmi *kubevirt.VirtualMachineInstance) int64 {
	stated := vmi.Spec.TerminationGracePeriodSeconds
	if stated == nil || *stated < 0 {
		return int64(DefaultGracePeriod / time.Second)
	}
	return *stated
}

func wholeSeconds(d time.Duration) int64 { return int64(math.Ceil(max(d, 0).Seconds())) }

func holdReasons(s *Settings) []string {
	var reasons []string
	for _, cause := range []string{CausePreemption, CauseNoExecute} {
		if s.Gate(gates[cause]) {
			reasons = append(reasons, cause)
		}
	}
	return reasons
}

// parseSeconds parses an annotation. ok is false if it is no number of seconds.
func parseSeconds(text string) (d time.Duration, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	return time.Duration(min(n, maxGraceSeconds)) * time.Second, true
}

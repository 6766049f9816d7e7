//go:build !unit

package migrations

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

const (
	domainUUID = "6ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"
	otherUUID  = "11111111-2222-4333-8444-555555555555"
)

// patches sends a merge patch of a migration's status as the agent of a node.
func (s scene) patches(node string, m *kubevirt.VirtualMachineInstanceMigration, status string) error {
	return shared.agents[node].Status().Patch(s.Context(), m.DeepCopy(), rig.Merge(`{"status":%s}`, status))
}

// refused asserts that a policy has refused something, with a message of vmgrace's.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "agent") || strings.Contains(err.Error(), "expression '") {
		t.Errorf("%s: %v, want a refusal by the policy", what, err)
	}
}

func state(fields string) string { return `{"migrationState":{` + fields + `}}` }

// Given the token of an agent. When the agent writes a field of a migration that is not its
// own or an invalid value, each in the phase in which it would do most harm, then the
// policy refuses it. Otherwise one compromised node could forge the outcome of a migration.
func TestAnAgentForgesNothingOfAMigration(t *testing.T) {
	s, m := placed(t)
	try := func(node string, all map[string]string) {
		t.Helper()
		for what, status := range all {
			refused(t, node+", "+what, s.patches(node, m, status))
		}
	}
	long, now := strings.Repeat("x", 100<<10), time.Now().UTC().Format(time.RFC3339)
	times := func(phase, at string) string {
		return fmt.Sprintf(`{"phase":%q,"phaseTransitionTimestamps":[{"phase":%q,"phaseTransitionTimestamp":%q}]}`, phase, phase, at)
	}
	// Others have written a field and a condition.
	s.SetStatus(m.DeepCopy(), `{"conditions":[{"type":"migrationRejectedByResourceQuota","status":"False"}],"unknown":"kept"}`)
	phases := func(is *kubevirt.VirtualMachineInstanceMigration) string {
		var all []string
		for _, p := range is.Status.PhaseTransitionTimestamps {
			all = append(all, fmt.Sprintf(`{"phase":%q,"phaseTransitionTimestamp":%q}`, p.Phase, p.Timestamp.UTC().Format(time.RFC3339)))
		}
		return strings.Join(all, ",")
	}
	passed := phases(s.read(m))
	withPhase := func(phase, at string) string {
		return fmt.Sprintf(`{"phase":%q,"phaseTransitionTimestamps":[%s,{"phase":%q,"phaseTransitionTimestamp":%q}]}`, phase, passed, phase, at)
	}

	// The migration is Scheduled.
	both := map[string]string{
		"the status as a whole":    `null`,
		"the state as a whole":     `{"migrationState":null}`,
		"the phase":                `{"phase":null}`,
		"its times":                `{"phaseTransitionTimestamps":null}`,
		"an empty list of times":   `{"phaseTransitionTimestamps":[]}`,
		"a time without a phase":   `{"phaseTransitionTimestamps":[` + passed + `,{"phase":"Running","phaseTransitionTimestamp":"` + now + `"}]}`,
		"a condition":              `{"conditions":null}`,
		"another condition":        `{"conditions":[]}`,
		"a field of others":        `{"unknown":null}`,
		"a new field":              `{"more":"x"}`,
		"a new field of the state": state(`"more":"x"`),
		"a node":                   state(`"sourceNode":null`),
		"another node":             state(`"targetNode":"node-c"`),
		"the VMI's UID":            state(`"vmiUID":null`),
		"the UID of a pod":         state(`"targetPodUID":"x"`),
		"an abort":                 state(`"abortRequested":true`),
		"an end":                   state(`"endTimestamp":"` + now + `","completed":true`),
		"a reason alone":           state(`"failureReason":"x"`),
		"options":                  state(`"options":{"bandwidthMiB":1}`),
	}
	try("node-a", both)
	try("node-b", both)
	try("node-c", map[string]string{"a word about other nodes' migration": state(`"vmgraceTargetState":"Running"`)})
	for name, uuid := range map[string]string{"no UUID": "", "a word": "x", "a long one": long, "upper case": strings.ToUpper(domainUUID), "a line": domainUUID + `\n`} {
		try("node-a", map[string]string{name: state(`"vmgraceDomainUUID":"` + uuid + `"`)})
	}
	try("node-b", map[string]string{
		"the source's word":               state(`"vmgraceSourceState":"Gone"`),
		"the end":                         `{"phase":"Succeeded"}`,
		"the UUID":                        state(`"vmgraceDomainUUID":"` + domainUUID + `"`),
		"all other times":                 times("PreparingTarget", now),
		"a time in 2099":                  withPhase("PreparingTarget", "2099-01-01T00:00:00Z"),
		"a time in 1999":                  withPhase("PreparingTarget", "1999-01-01T00:00:00Z"),
		"the time of another phase":       strings.Replace(withPhase("PreparingTarget", now), `"phase":"PreparingTarget"`, `"phase":"Running"`, 1),
		"a long time":                     strings.Replace(withPhase("PreparingTarget", now), `"phaseTransitionTimestamp":"`+now+`"}]`, `"phaseTransitionTimestamp":"`+now+`","x":"`+long+`"}]`, 1),
		"an address too early":            state(`"targetNodeAddress":"192.0.2.2:9470"`),
		"a guest that runs before it can": state(`"targetState":"Running"`),
		"a guest that arrives too early":  state(`"targetState":"Arrived"`),
		"a resumption too early":          state(`"resumeTimestamp":"` + now + `"`),
		"a long reason":                   state(`"targetState":"Absent","failureReason":"` + long + `"`),
		"a word that is none":             state(`"targetState":"` + long + `"`),
	})
	try("node-a", map[string]string{
		"the target's word":            state(`"vmgraceTargetState":"Running"`),
		"a phase of the target's":      withPhase("PreparingTarget", now),
		"a start too early":            state(`"startTimestamp":"` + now + `"`),
		"progress too early":           state(`"progress":{"percent":1}`),
		"a pause too early":            state(`"mode":"Paused","pauseTimestamp":"` + now + `"`),
		"a downtime too early":         state(`"downtimeMilliseconds":1`),
		"a guest gone before it began": state(`"sourceState":"Gone"`),
		"a reason with no word":        state(`"sourceState":"","failureReason":"x"`),
	})

	// The source's agent states the UUID once.
	kit.Must(t, s.patches("node-a", m, state(`"vmgraceDomainUUID":"`+domainUUID+`"`)))
	try("node-a", map[string]string{"another UUID": state(`"vmgraceDomainUUID":"` + otherUUID + `"`), "no UUID": state(`"vmgraceDomainUUID":null`)})

	// The migration is PreparingTarget.
	s.to(m, kubevirt.MigrationPreparingTarget)
	passed = phases(s.read(m))
	try("node-b", map[string]string{
		"a long address":   withPhase("TargetReady", now)[:len(withPhase("TargetReady", now))-1] + `,"migrationState":{"targetNodeAddress":"` + long + `"}}`,
		"a transport":      state(`"transport":"Other"`),
		"an earlier phase": `{"phase":"Scheduled"}`,
	})

	// The migration becomes TargetReady and Running.
	s.agent("node-b", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.Phase, m.Status.MigrationState.TargetNodeAddress = kubevirt.MigrationTargetReady, "192.0.2.2:9470"
	})
	passed = phases(s.read(m))
	running := withPhase("Running", now)
	try("node-a", map[string]string{
		"a start in 2099": running[:len(running)-1] + `,"migrationState":{"startTimestamp":"2099-01-01T00:00:00Z"}}`,
	})
	s.agent("node-a", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.Phase, m.Status.MigrationState.StartTimestamp = kubevirt.MigrationRunning, new(metav1.Now())
	})
	try("node-a", map[string]string{
		"a paused guest":     state(`"vmgraceGuestPaused":true`),
		"another start":      state(`"startTimestamp":"2026-01-01T00:00:00Z"`),
		"another UUID":       state(`"vmgraceDomainUUID":"` + otherUUID + `"`),
		"a pause in 2099":    state(`"mode":"Paused","pauseTimestamp":"2099-01-01T00:00:00.000000Z"`),
		"a mode":             state(`"mode":"PostCopy"`),
		"more progress":      state(`"progress":{"percent":1,"remainingMiB":1,"x":"` + long + `"}`),
		"negative progress":  state(`"progress":{"percent":-1,"remainingMiB":1}`),
		"a negative time":    state(`"downtimeMilliseconds":-1`),
		"years of downtime":  state(`"downtimeMilliseconds":100000000000`),
		"a reason alone":     state(`"failureReason":"x"`),
		"a reason with Gone": state(`"sourceState":"Gone","failureReason":"x"`),
	})
	try("node-b", map[string]string{
		"a pause":              state(`"mode":"Paused","pauseTimestamp":"` + now + `"`),
		"another address":      state(`"targetNodeAddress":"192.0.2.3:9470"`),
		"no address":           state(`"targetNodeAddress":null`),
		"a transport":          state(`"transport":"Native"`),
		"a resumption in 2099": state(`"resumeTimestamp":"2099-01-01T00:00:00.000000Z"`),
		"a reason with a word": state(`"targetState":"Running","failureReason":"x"`),
	})
	kit.Must(t, s.patches("node-a", m, state(`"mode":"Paused","pauseTimestamp":"`+time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")+`"`)))
	try("node-a", map[string]string{
		"no pause":      state(`"mode":null`),
		"another pause": state(`"pauseTimestamp":"` + time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000000Z") + `"`),
	})

	// The migration has ended.
	s.says("node-b", kubevirt.TargetArrived, m)
	s.says("node-a", kubevirt.SourceGone, m)
	s.says("node-b", kubevirt.TargetRunning, m)
	m = s.comes(m, kubevirt.MigrationSucceeded)
	kit.Must(t, s.patches("node-a", m, state(`"downtimeMilliseconds":120`)))
	kit.Must(t, s.patches("node-b", m, state(`"resumeTimestamp":"`+time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")+`"`)))
	ended := map[string]string{
		"a failure":            `{"phase":"Failed"}`,
		"the phase":            `{"phase":null}`,
		"the status":           `null`,
		"a reason":             state(`"failureReason":"x"`),
		"no end":               state(`"endTimestamp":null`),
		"progress":             state(`"progress":{"percent":1,"remainingMiB":1}`),
		"another word":         state(`"sourceState":"Running","failureReason":"x"`),
		"another downtime":     state(`"downtimeMilliseconds":121`),
		"another resumption":   state(`"resumeTimestamp":"` + time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000000Z") + `"`),
		"the target's no word": state(`"targetState":"Absent"`),
	}
	try("node-a", ended)
	try("node-b", ended)
	if is := s.read(m); is.Status.MigrationState.DomainUUID != domainUUID || is.Status.MigrationState.FailureReason != "" {
		t.Errorf("%+v", is.Status.MigrationState)
	}
}

func TestAnAgentRemovesNothingOfAVMI(t *testing.T) {
	s := given(t)
	v := s.vm("vm")
	s.SetStatus(v, `{"evacuationNodeName":"node-a","conditions":[{"type":"LiveMigratable","status":"True"},{"type":"Ready","status":"True"}]}`)
	try := func(status string) error {
		return shared.agents["node-a"].Status().Patch(t.Context(), v.DeepCopy(), rig.Merge(`{"status":%s}`, status))
	}
	const ready = `{"type":"Ready","status":"True"}`
	long := strings.Repeat("x", 100<<10)
	for what, status := range map[string]string{
		"the status as a whole": `null`,
		"the mark":              `{"evacuationNodeName":null}`,
		"the node":              `{"nodeName":null}`,
		"another node":          `{"nodeName":"node-b"}`,
		"all conditions":        `{"conditions":null}`,
		"its own condition":     `{"conditions":[` + ready + `]}`,
		"another's condition":   `{"conditions":[{"type":"LiveMigratable","status":"True"}]}`,
		"its condition twice":   `{"conditions":[{"type":"LiveMigratable","status":"True"},{"type":"LiveMigratable","status":"False"},` + ready + `]}`,
		"a long message":        `{"conditions":[{"type":"LiveMigratable","status":"False","message":"` + long + `"},` + ready + `]}`,
		"a long reason":         `{"conditions":[{"type":"LiveMigratable","status":"False","reason":"` + long + `"},` + ready + `]}`,
		"a long field":          `{"conditions":[{"type":"LiveMigratable","status":"False","more":"` + long + `"},` + ready + `]}`,
		"a status that is none": `{"conditions":[{"type":"LiveMigratable","status":"Maybe"},` + ready + `]}`,
	} {
		refused(t, what, try(status))
	}
	kit.Must(t, try(`{"conditions":[{"type":"LiveMigratable","status":"False","reason":"HostDevice","message":"a host device","lastProbeTime":"2026-01-01T00:00:00Z","lastTransitionTime":null},`+ready+`]}`))
	err := shared.agents["node-b"].Status().Patch(t.Context(), v.DeepCopy(), rig.Merge(`{"status":{"nodeName":"node-b"}}`))
	refused(t, "a VMI of another node", err)
	if is := s.vmi("vm"); is.Status.EvacuationNodeName != "node-a" || is.Status.NodeName != "node-a" {
		t.Errorf("%+v", is.Status)
	}
}

func TestAnAgentMakesEventsOfItsOwnNodeAlone(t *testing.T) {
	s := given(t)
	v := s.vm("vm")
	n := 0
	event := func(change func(*corev1.Event)) *corev1.Event {
		n++
		e := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: s.NS, Name: fmt.Sprintf("vm.%d", n)},
			InvolvedObject: corev1.ObjectReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Namespace: s.NS, Name: "vm", UID: v.UID},
			Reason:         "ShutdownStarted", Message: "x", Type: corev1.EventTypeNormal,
			Source:              corev1.EventSource{Component: "node-agent", Host: "node-a"},
			ReportingController: "node-agent", ReportingInstance: "node-a", Count: 1,
		}
		change(e)
		return e
	}
	for what, change := range map[string]func(*corev1.Event){
		"of another node":        func(e *corev1.Event) { e.Source.Host = "node-b" },
		"of no node":             func(e *corev1.Event) { e.Source.Host = "" },
		"of another component":   func(e *corev1.Event) { e.Source.Component = "kubelet" },
		"by another node":        func(e *corev1.Event) { e.ReportingInstance = "node-b" },
		"by another component":   func(e *corev1.Event) { e.ReportingController = "kubelet" },
		"about a pod":            func(e *corev1.Event) { e.InvolvedObject.APIVersion, e.InvolvedObject.Kind = "v1", "Pod" },
		"about nothing":          func(e *corev1.Event) { e.InvolvedObject = corev1.ObjectReference{Namespace: s.NS} },
		"about a kind of others": func(e *corev1.Event) { e.InvolvedObject.APIVersion = "example.org/v1" },
		"with a long message":    func(e *corev1.Event) { e.Message = strings.Repeat("x", 1025) },
		"with a long reason":     func(e *corev1.Event) { e.Reason = strings.Repeat("x", 129) },
		"with an annotation":     func(e *corev1.Event) { e.Annotations = map[string]string{"a": "b"} },
		"with a finalizer":       func(e *corev1.Event) { e.Finalizers = []string{"a.b/c"} },
		"about another's Node": func(e *corev1.Event) {
			e.Namespace, e.InvolvedObject = "default", corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-b", UID: "node-b"}
		},
	} {
		refused(t, what, shared.agents["node-a"].Create(t.Context(), event(change)))
	}
	own := event(func(*corev1.Event) {})
	kit.Must(t, shared.agents["node-a"].Create(t.Context(), own))
	kit.Must(t, shared.agents["node-a"].Create(t.Context(), event(func(e *corev1.Event) {
		e.Namespace, e.InvolvedObject = "default", corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-a", UID: "node-a"}
		e.Message = strings.Repeat("x", 1024)
	})))
}

func TestAnAgentAsksForItsOwnSignersCertificates(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "vmgrace:node:node-a"}}, key)
	kit.Must(t, err)
	ask := func(signer string, usages ...certificatesv1.KeyUsage) error {
		return shared.agents["node-a"].Create(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages}})
	}
	refused(t, "another signer's", ask(certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth))
	kit.Must(t, ask(migration.SignerName, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature))
}

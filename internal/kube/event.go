package kube

import (
	"crypto/sha256"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// name is the same for the same Event, also after a restart.
func (e Event) name() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{e.UID, e.Reason, e.Key}, "\x00")))
	const room = 200 // of the 253 that a name may have
	return fmt.Sprintf("%s.%x", strings.TrimRight(cut(e.Name, room), "-."), sum[:8])
}

// coreEvent is a core/v1 Event, as much of it as is said.
type coreEvent struct {
	metav1.TypeMeta     `json:",inline"`
	metav1.ObjectMeta   `json:"metadata"`
	InvolvedObject      reference   `json:"involvedObject"`
	Reason              string      `json:"reason"`
	Message             string      `json:"message"`
	Type                string      `json:"type"`
	Source              eventSource `json:"source"`
	FirstTimestamp      metav1.Time `json:"firstTimestamp"`
	LastTimestamp       metav1.Time `json:"lastTimestamp"`
	Count               int32       `json:"count"`
	ReportingController string      `json:"reportingComponent"`
	ReportingInstance   string      `json:"reportingInstance"`
}

type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type eventSource struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

func (e Event) object(node string) *coreEvent {
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	at := metav1.NewTime(e.At)
	return &coreEvent{
		TypeMeta:       metav1.TypeMeta{APIVersion: coreGroup().String(), Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: e.Namespace, Name: e.name()},
		InvolvedObject: reference{vmiGroup().String(), vmiKind, e.Namespace, e.Name, e.UID},
		Reason:         e.Reason, Message: e.Message, Type: kind,
		Source:         eventSource{component, node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: component, ReportingInstance: cut(node, maxInstance),
	}
}

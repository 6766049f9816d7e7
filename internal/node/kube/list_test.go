package kube

import (
	"errors"
	"testing"
)

const oneVMI = `{"metadata":{"namespace":"n","name":"vm","Name":"other","UID":"no","uid":"u"},"spec":{"terminationGracePeriodSeconds":7}}`

func TestAListIsReadAsAPIServersWriteIt(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		items int
	}{
		"with items": {`{"apiVersion":"kubevirt.io/v1","items":[` + oneVMI + `,` + oneVMI + `],"kind":"VirtualMachineInstanceList","metadata":{"continue":"c","resourceVersion":"5"}}`, 2},
		"of nothing": {`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5","continue":"c"},"items":[]}`, 0},
		"of null":    {`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5","continue":"c"},"items":null}`, 0},
	} {
		l, err := readList([]byte(c.text), "VirtualMachineInstanceList")
		if err != nil || len(l.Items) != c.items || l.ResourceVersion != "5" || l.Continue != "c" {
			t.Fatalf("%s: %v, %+v", name, err, l)
		}
		for _, o := range l.Items {
			if o.Name != "vm" || o.UID != "u" || statedGrace(o.Spec) != "7" {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
}

func TestWhatIsNoWholeListIsRefused(t *testing.T) {
	const begin = `{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5"},"items":[` + oneVMI
	for name, text := range map[string]string{
		"nothing":              ``,
		"null":                 `null`,
		"a page":               `<html>`,
		"a text":               `"list"`,
		"another kind":         `{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[]}`,
		"no kind":              `{"metadata":{"resourceVersion":"5"},"items":[]}`,
		"no resource version":  `{"kind":"VirtualMachineInstanceList","metadata":{},"items":[]}`,
		"items that are none":  `{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5"},"items":{"a":1}}`,
		"an item that is none": begin + `,"vm"]}`,
		"a broken item":        begin + `,{"metadata":}]}`,
		"cut in an item":       begin[:len(begin)-3],
		"cut after an item":    begin,
		"cut before its end":   begin + `]`,
	} {
		if _, err := readList([]byte(text), "VirtualMachineInstanceList"); !errors.Is(err, errNotAPIServer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package kube

import (
	"errors"
	"strings"
	"testing"
)

const oneVMI = `{"metadata":{"namespace":"n","name":"vm","Name":"other","UID":"no","uid":"u"},"spec":{"terminationGracePeriodSeconds":7}}`

func TestAListIsReadItemByItem(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		items int
	}{
		"as API servers write it": {`{"apiVersion":"kubevirt.io/v1","items":[` + oneVMI + `,` + oneVMI + `],"kind":"VirtualMachineInstanceList","metadata":{"continue":"c","resourceVersion":"5"}}`, 2},
		"in another order":        {`{"metadata":{"resourceVersion":"5","continue":"c"},"kind":"VirtualMachineInstanceList","more":{"items":[1]},"items":[` + oneVMI + `]}`, 1},
		"of nothing":              {`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5","continue":"c"},"items":[]}`, 0},
		"of null":                 {`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5","continue":"c"},"items":null}`, 0},
	} {
		l := &listOf[vmi, *vmi]{}
		err := readList(strings.NewReader(c.text), vmiKind+"List", l, appendTo(&l.Items))
		if err != nil || len(l.Items) != c.items || l.ResourceVersion != "5" || l.Continue != "c" {
			t.Errorf("%s: %v, %d items, %+v", name, err, len(l.Items), l.ListMeta)
		}
		for _, o := range l.Items {
			if o.Name != "vm" || o.UID != "u" || o.Spec.grace != "7" {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
}

func TestWhatIsNoWholeListIsRefused(t *testing.T) {
	const begin = `{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5"},"items":[` + oneVMI
	for name, c := range map[string]struct {
		text    string
		strange bool
	}{
		"nothing":              {``, true},
		"null":                 {`null`, true},
		"a page":               {`<html>`, true},
		"a text":               {`"list"`, true},
		"another kind":         {`{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[]}`, true},
		"no kind":              {`{"metadata":{"resourceVersion":"5"},"items":[]}`, true},
		"no resource version":  {`{"kind":"VirtualMachineInstanceList","metadata":{},"items":[]}`, true},
		"items that are none":  {`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"5"},"items":{"a":1}}`, true},
		"an item that is none": {begin + `,"vm"]}`, true},
		"a broken item":        {begin + `,{"metadata":}]}`, true},
		"cut in an item":       {begin[:len(begin)-3], false},
		"cut after an item":    {begin, true},
		"cut before its end":   {begin + `]`, true},
	} {
		l := &listOf[vmi, *vmi]{}
		err := readList(strings.NewReader(c.text), vmiKind+"List", l, appendTo(&l.Items))
		if err == nil || errors.Is(err, errStrange) != c.strange {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package patch

import (
	"encoding/json"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestConditionsOfOthersStayAsTheyAre(t *testing.T) {
	is := func(kind, message string) *kubevirt.Condition {
		return &kubevirt.Condition{Type: kind, Status: kubevirt.ConditionTrue, Reason: "R", Message: message}
	}
	for name, c := range map[string]struct {
		have []string
		want []Wanted
		ops  string
	}{
		"none yet":          {nil, []Wanted{{"A", is("A", "x")}, {"B", is("B", "x")}}, "add /status/conditions; add /status/conditions/-; "},
		"beside another":    {[]string{"Z"}, []Wanted{{"A", is("A", "x")}}, "add /status/conditions/-; "},
		"up to date":        {[]string{"A"}, []Wanted{{"A", is("A", "x")}}, ""},
		"another message":   {[]string{"Z", "A"}, []Wanted{{"A", is("A", "y")}}, "replace /status/conditions/1; "},
		"goes":              {[]string{"Z", "A"}, []Wanted{{"A", nil}}, "remove /status/conditions/1; "},
		"both go":           {[]string{"A", "Z", "B"}, []Wanted{{"A", nil}, {"B", nil}}, "remove /status/conditions/2; remove /status/conditions/0; "},
		"was never there":   {[]string{"Z"}, []Wanted{{"A", nil}}, ""},
		"one goes, one not": {[]string{"A", "B"}, []Wanted{{"A", nil}, {"B", is("B", "y")}}, "replace /status/conditions/1; remove /status/conditions/0; "},
	} {
		vmi := &kubevirt.VirtualMachineInstance{}
		for _, kind := range c.have {
			vmi.Status.Conditions = append(vmi.Status.Conditions, *is(kind, "x"))
		}
		got := ""
		for _, o := range Conditions(vmi, c.want...) {
			if _, err := json.Marshal(o); err != nil {
				t.Error(err)
			}
			got += o.Op + " " + o.Path + "; "
		}
		if got != c.ops {
			t.Errorf("%s: %q, want %q", name, got, c.ops)
		}
	}
}

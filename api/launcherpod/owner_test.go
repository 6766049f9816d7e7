package launcherpod

import (
	"testing"
	"time"
)

// Given a pod that names a VMI. Then it is the VMI's by UID; without one, only while the VMI may get
// a launcher. Otherwise the deletion of a VMI that has ended would end the next guest of its name.
func TestWhoseAPodIs(t *testing.T) {
	at := time.Unix(100, 0)
	for name, c := range map[string]struct {
		vmi  Owner
		pod  Pod
		want bool
	}{
		"its UID":                      {Owner{UID: "u", Ended: true, DeletedAt: at}, Pod{VMI: "u", Created: at.Add(1)}, true},
		"another UID":                  {Owner{UID: "u"}, Pod{VMI: "former"}, false},
		"its name":                     {Owner{UID: "u"}, Pod{}, true},
		"one that has ended":           {Owner{UID: "u", Ended: true}, Pod{}, false},
		"one with another launcher":    {Owner{UID: "u", Launcher: "p"}, Pod{UID: "q"}, false},
		"its launcher, without labels": {Owner{UID: "u", Launcher: "p"}, Pod{UID: "p"}, true},
		"one deleted before":           {Owner{UID: "u", DeletedAt: at}, Pod{Created: at.Add(time.Second)}, false},
		"one deleted since":            {Owner{UID: "u", DeletedAt: at}, Pod{Created: at}, true},
	} {
		if got := c.vmi.Owns(c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

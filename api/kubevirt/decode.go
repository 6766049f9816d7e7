package kubevirt

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// decode reads a JSON object into a struct, each field for itself: one of another type is
// as if it were absent, and in a list the item keeps its place with a zero value. Others
// write these objects, too, and one of them must not hide all others of its list. A field Unknown
// has the names of the members that no field reads.
func decode(text []byte, into any) {
	to := reflect.ValueOf(into).Elem()
	to.SetZero()
	var members map[string]json.RawMessage // a struct would take other spellings of a key
	if json.Unmarshal(text, &members) != nil {
		return
	}
	for i := range to.NumField() {
		name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
		if raw, there := members[name]; there {
			decodeValue(raw, to.Field(i))
			delete(members, name)
		}
	}
	if unknown := to.FieldByName("Unknown"); unknown.IsValid() {
		unknown.SetString(strings.Join(slices.Sorted(maps.Keys(members)), "\n"))
	}
}

func decodeValue(raw json.RawMessage, to reflect.Value) {
	if to.Kind() == reflect.Slice {
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
			return
		}
		to.Set(reflect.MakeSlice(to.Type(), len(items), len(items)))
		for i := range items {
			decodeValue(items[i], to.Index(i))
		}
		return
	}
	value := reflect.New(to.Type()) // what fails midway leaves nothing behind
	if json.Unmarshal(raw, value.Interface()) == nil {
		to.Set(value.Elem())
	}
}

// UnmarshalJSON reads each field for itself.
func (s *VirtualMachineInstanceSpec) UnmarshalJSON(text []byte) error { decode(text, s); return nil }

// UnmarshalJSON reads each field for itself.
func (s *VirtualMachineInstanceStatus) UnmarshalJSON(text []byte) error { decode(text, s); return nil }

// UnmarshalJSON reads each field for itself.
func (m *Mark) UnmarshalJSON(text []byte) error { decode(text, m); return nil }

// UnmarshalJSON reads each field for itself.
func (l *Launcher) UnmarshalJSON(text []byte) error { decode(text, l); return nil }

// UnmarshalJSON reads each field for itself.
func (c *Claim) UnmarshalJSON(text []byte) error { decode(text, c); return nil }

// UnmarshalJSON reads each field for itself.
func (c *Condition) UnmarshalJSON(text []byte) error { decode(text, c); return nil }

// UnmarshalJSON reads each field for itself.
func (s *VirtualMachineInstanceMigrationSpec) UnmarshalJSON(text []byte) error {
	decode(text, s)
	return nil
}

// UnmarshalJSON reads each field for itself.
func (s *VirtualMachineInstanceMigrationStatus) UnmarshalJSON(text []byte) error {
	decode(text, s)
	return nil
}

// UnmarshalJSON reads each field for itself.
func (t *MigrationPhaseTransition) UnmarshalJSON(text []byte) error { decode(text, t); return nil }

// UnmarshalJSON reads each field for itself, and what agents of v0.1 report under names
// that KubeVirt has for objects.
func (s *MigrationState) UnmarshalJSON(text []byte) error {
	decode(text, s)
	var former struct {
		Source string `json:"sourceState"`
		Target string `json:"targetState"`
	}
	decode(text, &former)
	s.SourceState, s.TargetState = cmp.Or(s.SourceState, former.Source), cmp.Or(s.TargetState, former.Target)
	return nil
}

// UnmarshalJSON reads each field for itself.
func (o *MigrationOptions) UnmarshalJSON(text []byte) error { decode(text, o); return nil }

// UnmarshalJSON reads each field for itself.
func (p *MigrationProgress) UnmarshalJSON(text []byte) error { decode(text, p); return nil }

// UnmarshalJSON reads each field for itself.
func (s *KubeVirtSpec) UnmarshalJSON(text []byte) error { decode(text, s); return nil }

// UnmarshalJSON reads each field for itself.
func (c *KubeVirtConfiguration) UnmarshalJSON(text []byte) error { decode(text, c); return nil }

// UnmarshalJSON reads each field for itself.
func (c *DeveloperConfiguration) UnmarshalJSON(text []byte) error { decode(text, c); return nil }

// UnmarshalJSON reads each field for itself.
func (c *MigrationConfiguration) UnmarshalJSON(text []byte) error { decode(text, c); return nil }

package kubevirt

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// ours has the fields that KubeVirt's types have not.
const ours = `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstanceMigration","metadata":{"name":"m"},"spec":{"vmiName":"vm","priority":"p"},
	"status":{"phase":"Running","phaseTransitionTimestamps":[{"phase":"Running","phaseTransitionTimestamp":"2026-01-02T03:04:05Z"}],
	"migrationState":{"migrationUid":"m","vmiUID":"v","gracePeriodSeconds":30,"sourceNode":"a","sourcePod":"p","sourcePodUID":"pu","targetNode":"b","targetPod":"q",
	"targetPodUID":"qu","targetNodeAddress":"1.2.3.4:5","transport":"Native","options":{"bandwidthMiB":1,"completionTimeoutPerGiB":2,"progressTimeout":3,
	"allowAutoConverge":true,"pauseAfter":4},"progress":{"percent":5,"remainingMiB":6,"totalMiB":7},"vmgraceSourceState":"Gone","vmgraceTargetState":"Running",
	"mode":"Paused","pauseTimestamp":"2026-01-02T03:04:05.000001Z","resumeTimestamp":"2026-01-02T03:04:05.000002Z","downtimeMilliseconds":8,"abortRequested":true,
	"startTimestamp":"2026-01-02T03:04:05Z","endTimestamp":"2026-01-02T03:04:06Z","completed":true,"failed":true,"failureReason":"r"}}}`

// given are objects with every field of KubeVirt's types (hack/kubevirt makes them) and of
// vmgrace's own.
func given(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"ours": ours}
	for _, name := range []string{"vmi", "migration", "settings"} {
		text, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// decoder is that of clients.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}

// read decodes an object.
func read(t *testing.T, from runtime.Decoder, text string) (fields map[string]string, err error) {
	t.Helper()
	o, _, err := from.Decode([]byte(text), nil, nil)
	if err != nil {
		return nil, err
	}
	back, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	fields = map[string]string{}
	flatten("", document(t, string(back)), fields)
	return fields, nil
}

func document(t *testing.T, text string) (d any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func flatten(path string, value any, into map[string]string) {
	switch is := value.(type) {
	case map[string]any:
		for key := range is {
			flatten(path+"/"+key, is[key], into)
		}
	case []any:
		for i := range is {
			flatten(fmt.Sprintf("%s/%d", path, i), is[i], into)
		}
	default:
		into[path] = fmt.Sprint(is)
	}
}

// deepest is how many names the path of a field has that is read.
const deepest = 4

// places calls visit for every value below spec and status, with a function that replaces it.
func places(path string, value any, visit func(path string, replace func(any))) {
	if strings.Count(path, "/") == deepest {
		return
	}
	switch is := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(is)) {
			at := path + "/" + key
			if path == "" && key != "spec" && key != "status" {
				continue // the API server's own
			}
			places(at, is[key], visit)
			visit(at, func(by any) { is[key] = by })
		}
	case []any:
		for i := range is {
			at := fmt.Sprintf("%s/%d", path, i)
			places(at, is[i], visit)
			visit(at, func(by any) { is[i] = by })
		}
	}
}

func TestAFieldOfAnotherTypeHidesNoOther(t *testing.T) {
	others := []any{nil, true, -9e99, "another", []any{7.5, "x", nil, map[string]any{}}, map[string]any{"type": 1.0, "phase": []any{}}}
	client := decoder(t)
	for name, text := range given(t) {
		before, err := read(t, client, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		whole := document(t, text)
		places("", whole, func(path string, replace func(any)) {
			was := valueAt(whole, path)
			for _, by := range others {
				replace(by)
				changed, err := json.Marshal(whole)
				if err != nil {
					t.Fatal(err)
				}
				after, err := read(t, client, string(changed))
				if err != nil {
					t.Errorf("%s with %s = %v: %v", name, path, by, err)
				}
				for _, field := range differing(before, after) {
					if !strings.HasPrefix(field, path) && !strings.HasSuffix(path, "sourceState") && !strings.HasSuffix(path, "targetState") {
						t.Errorf("%s with %s = %v: %s is %q, not %q", name, path, by, field, after[field], before[field])
					}
				}
			}
			replace(was)
		})
	}
}

func valueAt(value any, path string) any {
	for _, key := range strings.Split(path[1:], "/") {
		switch is := value.(type) {
		case map[string]any:
			value = is[key]
		case []any:
			var i int
			_, _ = fmt.Sscan(key, &i)
			value = is[i]
		}
	}
	return value
}

func differing(a, b map[string]string) (fields []string) {
	for field := range a {
		if has, there := b[field]; !there || has != a[field] {
			fields = append(fields, field)
		}
	}
	for field := range b {
		if _, there := a[field]; !there {
			fields = append(fields, field)
		}
	}
	return fields
}

// A type whose fields are decoded by the library fails whole.
func TestEveryTypeReadsItsFieldsForThemselves(t *testing.T) {
	var check func(of reflect.Type)
	check = func(of reflect.Type) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[Condition]().PkgPath() {
			return
		}
		if !reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			t.Errorf("%v has no UnmarshalJSON", of)
		}
		for i := range of.NumField() {
			check(of.Field(i).Type)
		}
	}
	for _, root := range []any{VirtualMachineInstance{}, VirtualMachineInstanceMigration{}, KubeVirt{}} {
		of := reflect.TypeOf(root)
		for i := range of.NumField() {
			check(of.Field(i).Type)
		}
	}
}

func TestWhatFormerAgentsReportIsRead(t *testing.T) {
	for text, want := range map[string][2]string{
		`{"sourceState":"Gone","targetState":"Arrived"}`:                                   {SourceGone, TargetArrived},
		`{"targetState":"Arrived","vmgraceTargetState":"Running"}`:                         {"", TargetRunning},
		`{"sourceState":{"node":"a"},"vmgraceSourceState":"Gone","targetState":{"pod":7}}`: {SourceGone, ""},
	} {
		var s MigrationState
		if err := json.Unmarshal([]byte(text), &s); err != nil || s.SourceState != want[0] || s.TargetState != want[1] {
			t.Errorf("%s: %v, %q and %q", text, err, s.SourceState, s.TargetState)
		}
	}
}

// client-go decodes into the object that was there.
func TestAFieldThatIsGoneLeavesNothingBehind(t *testing.T) {
	s := VirtualMachineInstanceStatus{NodeName: "a", EvacuationNodeName: "a"}
	if err := json.Unmarshal([]byte(`{"nodeName":"a"}`), &s); err != nil || s.EvacuationNodeName != "" {
		t.Errorf("%v, %+v", err, s)
	}
}

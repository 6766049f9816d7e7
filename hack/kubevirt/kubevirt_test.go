// Package kubevirt checks that vmgrace reads objects with every field that KubeVirt's own
// types have.
package kubevirt

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	theirs "kubevirt.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

var update = flag.Bool("update", false, "write the objects that the product's own tests read")

// kinds are objects of KubeVirt's types with every field filled in, by the name of their
// file for the product's own tests.
func kinds() map[string]any {
	vmi, migration, settings := &theirs.VirtualMachineInstance{}, &theirs.VirtualMachineInstanceMigration{}, &theirs.KubeVirt{}
	for _, o := range []any{vmi, migration, settings} {
		fill(reflect.ValueOf(o).Elem(), 0)
	}
	version := theirs.GroupVersion.String()
	vmi.TypeMeta = metav1.TypeMeta{APIVersion: version, Kind: "VirtualMachineInstance"}
	migration.TypeMeta = metav1.TypeMeta{APIVersion: version, Kind: "VirtualMachineInstanceMigration"}
	settings.TypeMeta = metav1.TypeMeta{APIVersion: version, Kind: "KubeVirt"}
	return map[string]any{"vmi": vmi, "migration": migration, "settings": settings}
}

// deepest is how far types that contain themselves are filled in.
const deepest = 24

// fill sets everything to a value that is not its type's zero value, the same each time.
func fill(v reflect.Value, depth int) {
	if depth > deepest || !v.CanSet() {
		return
	}
	switch is := v.Addr().Interface().(type) {
	case *metav1.Time:
		*is = metav1.NewTime(time.Unix(1e9, 0).UTC())
		return
	case *metav1.MicroTime:
		*is = metav1.NewMicroTime(time.Unix(1e9, 0).UTC())
		return
	case *resource.Quantity:
		*is = resource.MustParse("64Mi")
		return
	case *runtime.RawExtension:
		is.Raw = []byte(`{"a":"b"}`)
		return
	case *metav1.FieldsV1:
		is.SetRawString(`{}`)
		return
	case *intstr.IntOrString:
		*is = intstr.FromString("7%")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("word")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(0.5)
	default: // KubeVirt's types have no others
	}
}

// TestEveryFieldOfKubeVirtsIsRead: as clients decode them, one by one and in lists.
func TestEveryFieldOfKubeVirtsIsRead(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubevirt.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	for name, o := range kinds() {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		kind := reflect.TypeOf(o).Elem().Name()
		list := `{"apiVersion":"kubevirt.io/v1","kind":"` + kind + `List","metadata":{"resourceVersion":"1"},"items":[` + string(text) + `,` + string(text) + `]}`
		for _, text := range []string{string(text), list} {
			if _, _, err := decoder.Decode([]byte(text), nil, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestTheProductsTestsHaveTheNewestObjects: -update writes them.
func TestTheProductsTestsHaveTheNewestObjects(t *testing.T) {
	for name, o := range kinds() {
		text, err := json.MarshalIndent(o, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("..", "..", "api", "kubevirt", "testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if has, err := os.ReadFile(file); err != nil || !bytes.Equal(has, append(text, '\n')) {
			t.Errorf("%s is not up to date (%v): go test -update", file, err)
		}
	}
}

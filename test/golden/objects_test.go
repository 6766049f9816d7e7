package golden

import (
	"fmt"
	"hash/crc32"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// objects has an object of each kind with every field set.
func objects() map[string]runtime.Object {
	meta := metav1.ObjectMeta{Name: "db-0.prod", Namespace: "shop", UID: uid, Labels: map[string]string{kubevirt.NodeNameLabel: "node-a"}}
	vmi := &kubevirt.VirtualMachineInstance{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance"}, ObjectMeta: meta,
	}
	migration := &kubevirt.VirtualMachineInstanceMigration{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstanceMigration"}, ObjectMeta: meta,
	}
	policy := &v1alpha1.EvacuationPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "EvacuationPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name},
	}
	migration.Annotations = map[string]string{kubevirt.EvacuationMigrationAnnotation: "node-a"}
	for _, into := range []any{&vmi.Spec, &vmi.Status, &migration.Spec, &migration.Status, &policy.Spec, &policy.Status} {
		fill("", reflect.ValueOf(into).Elem())
	}
	return map[string]runtime.Object{"vmi": vmi, "migration": migration, "policy": policy}
}

// fill sets each field to a value that follows from its path, so that a new one changes no other.
func fill(path string, v reflect.Value) {
	n := int64(crc32.ChecksumIEEE([]byte(path))%1000) + 1
	when := time.Date(2026, 3, 1, 12, 0, int(n), 0, time.UTC)
	switch is := v.Addr().Interface().(type) {
	case *metav1.Time:
		is.Time = when
		return
	case *metav1.MicroTime:
		is.Time = when
		return
	case *metav1.Duration:
		is.Duration = time.Duration(n) * time.Second
		return
	case *intstr.IntOrString:
		*is = intstr.FromString(fmt.Sprint(n) + "%")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(path, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(path, v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf("value"))
	case reflect.String:
		v.SetString(fmt.Sprint("value-", n))
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(n)
	}
}

package golden

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// means has what files mean: for each field that is not zero a line FILE FIELD = VALUE.
type means []string

func (m means) String() string { return strings.Join(slices.Sorted(slices.Values(m)), "\n") + "\n" }

// add adds a value's fields.
func (m *means) add(file, field string, v reflect.Value) {
	if v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().IsZero() {
		*m = append(*m, fmt.Sprintf("%s %s = %v", file, field, v.Elem().Interface())) // nil is another
		return
	}
	if v.IsZero() {
		return
	}
	if is, ok := v.Interface().(json.Marshaler); ok && v.Kind() != reflect.Pointer {
		text, err := is.MarshalJSON()
		if err != nil {
			text = []byte(err.Error())
		}
		*m = append(*m, fmt.Sprintf("%s %s = %s", file, field, text))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		m.add(file, field, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			m.add(file, strings.TrimPrefix(field+"."+v.Type().Field(i).Name, "."), v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			m.add(file, fmt.Sprintf("%s[%d]", field, i), v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			m.add(file, fmt.Sprintf("%s[%v]", field, key), v.MapIndex(key))
		}
	default:
		*m = append(*m, fmt.Sprintf("%s %s = %v", file, field, v.Interface()))
	}
}

func (m *means) of(file string, value any) { m.add(file, "", reflect.ValueOf(value)) }

// answer is what a launcher takes from status.json.
type answer struct {
	Stopped, Moved bool
	End            grace.End
	Requested      uint64
}

// named is what the agent takes from a trigger.
type named struct{ UID string }

// write writes what this version writes, and what it means, into an empty directory.
func write(dir string) error {
	var m means
	err := errors.Join(writeRecords(filepath.Join(dir, "records"), &m), writeLaunchers(dir, &m), writeObjects(dir, &m))
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "means"), []byte(m.String()), 0o644))
}

func writeRecords(dir string, m *means) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	store, _, err := gracecache.Take(durable.Real(), dir)
	if err != nil {
		return err
	}
	err = store.MakeWritable()
	for _, rec := range records() {
		err = errors.Join(err, store.Put(rec))
		m.of("records/"+rec.Domain()+".json", rec)
	}
	return errors.Join(err, store.Close(), os.Remove(filepath.Join(dir, ".lock")))
}

func writeLaunchers(dir string, m *means) (err error) {
	for name, l := range launchers() {
		at := "launchers/" + name + "/"
		put := func(file string, content []byte) { err = errors.Join(err, put(filepath.Join(dir, at+file), content)) }
		put(signals.FileVM, l.vm.Encode())
		m.of(at+signals.FileVM, l.vm)
		if l.trigger != nil {
			put(signals.FileTrigger, l.trigger.Encode())
			m.of(at+signals.FileTrigger, named{l.trigger.UID})
		}
		if l.status != nil {
			put(signals.FileStatus, signals.EncodeStatus(*l.status))
			stopped := l.status.Phase == grace.Stopped
			m.of(at+signals.FileStatus, answer{stopped, stopped && l.status.Outcome == grace.Migrated, l.status.End, l.status.Request})
		}
	}
	return err
}

func writeObjects(dir string, m *means) error {
	for name, object := range objects() {
		text, err := json.MarshalIndent(object, "", "  ")
		if err == nil {
			err = put(filepath.Join(dir, "objects", name+".json"), append(text, '\n'))
		}
		if err != nil {
			return err
		}
		m.of("objects/"+name+".json", object)
	}
	return nil
}

func put(path string, content []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
}

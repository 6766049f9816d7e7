package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// object is a pointer to one of our objects, of which O is the type.
type object[O any] interface {
	*O
	metav1.Object
	copied() O
}

// listOf is a list of objects O.
type listOf[O any, P object[O]] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []O `json:"items"`
}

// DeepCopyObject is what the library wants of every object.
func (l *listOf[O, P]) DeepCopyObject() runtime.Object {
	out := &listOf[O, P]{TypeMeta: l.TypeMeta, Items: make([]O, len(l.Items))}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items[i] = P(&l.Items[i]).copied()
	}
	return out
}

// readList reads a list item by item. As one text, with all its objects in full,
// it takes many times the memory of what is kept of them, and the process has
// that for good. It refuses a list that no API server has made.
func readList(from io.Reader, kind string, l metav1.ListInterface, add func(item []byte) error) error {
	dec := json.NewDecoder(from)
	var is string
	var meta metav1.ListMeta
	err := each(dec, '{', func() error {
		switch key, err := dec.Token(); {
		case err != nil:
			return err
		case key == "kind":
			return dec.Decode(&is)
		case key == "metadata":
			return dec.Decode(&meta)
		case key == "items":
			var item json.RawMessage
			return each(dec, '[', func() error {
				if err := dec.Decode(&item); err != nil {
					return err
				}
				return add(item)
			})
		default:
			return dec.Decode(new(json.RawMessage))
		}
	})
	switch {
	case err != nil:
		return err
	case is != kind:
		return fmt.Errorf("%w: a %.64q, not a %s", errStrange, is, kind)
	case meta.ResourceVersion == "":
		return fmt.Errorf("%w: a list without a resource version", errStrange)
	}
	l.SetResourceVersion(meta.ResourceVersion)
	l.SetContinue(meta.Continue)
	return nil
}

// each calls read for each part of an object or array, and takes null for an
// empty one.
func each(dec *json.Decoder, open json.Delim, read func() error) error {
	first, err := dec.Token()
	if err != nil {
		return broken(err)
	}
	if first == nil {
		return nil
	}
	if first != open {
		return fmt.Errorf("%w: a list with a %v where a %v should be", errStrange, first, open)
	}
	for dec.More() {
		if err := read(); err != nil {
			return broken(err)
		}
	}
	_, err = dec.Token() // its end, or why there is none
	return broken(err)
}

// broken tells a text that is no list from a connection that ended.
func broken(err error) error {
	var syntax *json.SyntaxError
	var unfit *json.UnmarshalTypeError
	if errors.Is(err, io.EOF) || errors.As(err, &syntax) || errors.As(err, &unfit) {
		return fmt.Errorf("%w: %w", errStrange, err)
	}
	return err
}

// appendTo decodes items, and keeps of them what is needed until all are read.
func appendTo[O any, P object[O]](items *[]O) func([]byte) error {
	return func(text []byte) error {
		var o O
		// Unlike the standard library it takes no other spelling of a key.
		if err := kjson.Unmarshal(text, &o); err != nil {
			return fmt.Errorf("%w: %w", errStrange, err)
		}
		P(&o).SetManagedFields(nil) // large, and nobody looks at it
		*items = append(*items, o)
		return nil
	}
}

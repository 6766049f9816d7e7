// Mkimage packs a directory into an image of one layer, an OCI image layout as
// `ctr images import` takes it:
//
//	mkimage OUT.tar NAME:TAG DIR [ENTRYPOINT...]
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

type object = map[string]any

// layout is the content of the tar, in order.
type layout struct {
	names []string
	files map[string][]byte
}

func (l *layout) add(name string, data []byte) {
	l.names = append(l.names, name)
	l.files[name] = data
}

// blob adds a blob and returns its descriptor.
func (l *layout) blob(mediaType string, data []byte) object {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	l.add("blobs/sha256/"+sum, data)
	return object{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(data)}
}

func (l *layout) jsonBlob(mediaType string, v any) (object, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mediaType, err)
	}
	return l.blob(mediaType, data), nil
}

// pack is a tar of a directory's files and links, without owners and times.
func pack(dir string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		*h = tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: target, Size: h.Size, Mode: h.Mode}
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", dir, err)
	}
	return b.Bytes(), w.Close()
}

func image(name, dir string, entrypoint []string) (*layout, error) {
	l := &layout{files: map[string][]byte{}}
	packed, err := pack(dir)
	if err != nil {
		return nil, err
	}
	layer := l.blob("application/vnd.oci.image.layer.v1.tar", packed)
	config, err := l.jsonBlob("application/vnd.oci.image.config.v1+json", object{
		"architecture": "amd64", "os": "linux",
		"config": object{"Env": []string{"PATH=/bin"}, "Entrypoint": entrypoint},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})
	if err != nil {
		return nil, err
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := l.jsonBlob(manifestType, object{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []any{layer},
	})
	if err != nil {
		return nil, err
	}
	manifest["annotations"] = object{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:],
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []any{manifest}})
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	l.add("index.json", index)
	l.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return l, nil
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: mkimage OUT.tar NAME:TAG DIR [ENTRYPOINT...]")
	}
	l, err := image(args[1], args[2], args[3:])
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range l.names {
		data := l.files[name]
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := w.Write(data); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return os.WriteFile(args[0], b.Bytes(), 0o644)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

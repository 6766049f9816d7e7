package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// registry is where the images are.
const registry = "docker.io/vmgrace"

// layout is an image of one architecture.
type layout struct {
	name     string
	manifest v1.Descriptor
	image    v1.Image
	layers   []v1.Descriptor
	blobs    map[digest.Digest][]byte
}

// images are the archives of all layouts, one for each image, with all its architectures.
func (r release) images(context.Context) (files, boms []file, err error) {
	if r.layouts == "" {
		return nil, nil, nil
	}
	names, err := os.ReadDir(r.layouts)
	if err != nil {
		return nil, nil, fmt.Errorf("looking for images: %w", err)
	}
	for _, name := range names {
		layouts, err := open(filepath.Join(r.layouts, name.Name()), name.Name())
		if err != nil {
			return nil, nil, fmt.Errorf("reading the image %s: %w", name.Name(), err)
		}
		packed, err := r.join(name.Name(), layouts)
		if err != nil {
			return nil, nil, fmt.Errorf("packing the image %s: %w", name.Name(), err)
		}
		files = append(files, file{name: fmt.Sprintf("%s_%s_image.tar", name.Name(), r.version), data: packed})
		for _, l := range layouts {
			about, err := r.imageBOMs(l)
			if err != nil {
				return nil, nil, fmt.Errorf("listing what is in the image %s of %s: %w", name.Name(), l.image.Architecture, err)
			}
			boms = append(boms, about...)
		}
	}
	return files, boms, nil
}

// open reads the layouts of an image, one for each architecture.
func open(dir, name string) ([]layout, error) {
	architectures, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []layout
	for _, architecture := range architectures {
		l, err := read(filepath.Join(dir, architecture.Name()), name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", architecture.Name(), err)
		}
		if l.image.Architecture != architecture.Name() || l.image.OS != "linux" {
			return nil, fmt.Errorf("%s: the image is one of %s/%s", architecture.Name(), l.image.OS, l.image.Architecture)
		}
		all = append(all, l)
	}
	return all, nil
}

// read reads a layout with one image: its manifest, its configuration and its layers.
func read(dir, name string) (layout, error) {
	l := layout{name: name, blobs: map[digest.Digest][]byte{}}
	data, err := os.ReadFile(filepath.Join(dir, v1.ImageIndexFile))
	if err != nil {
		return l, err
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return l, fmt.Errorf("its index: %w", err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].MediaType != v1.MediaTypeImageManifest {
		return l, fmt.Errorf("its index does not name one image: %+v", index.Manifests)
	}
	l.manifest = index.Manifests[0]
	var manifest v1.Manifest
	if err := l.add(dir, l.manifest, &manifest); err != nil {
		return l, err
	}
	if err := l.add(dir, manifest.Config, &l.image); err != nil {
		return l, err
	}
	l.layers = manifest.Layers
	for _, layer := range manifest.Layers {
		if err := l.add(dir, layer, nil); err != nil {
			return l, err
		}
	}
	return l, nil
}

// add reads a blob, which has to be what its digest says.
func (l *layout) add(dir string, d v1.Descriptor, into any) error {
	data, err := os.ReadFile(filepath.Join(dir, blob(d.Digest)))
	if err != nil {
		return err
	}
	if digest.FromBytes(data) != d.Digest {
		return fmt.Errorf("a blob is not %s", d.Digest)
	}
	l.blobs[d.Digest] = data
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	return nil
}

// blob is the path of a blob in a layout.
func blob(d digest.Digest) string {
	return filepath.Join(v1.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// join packs layouts as one OCI archive, whose one image has all their platforms.
func (r release) join(name string, layouts []layout) ([]byte, error) {
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	blobs := map[digest.Digest][]byte{}
	for _, l := range layouts {
		d := v1.Descriptor{MediaType: l.manifest.MediaType, Digest: l.manifest.Digest, Size: l.manifest.Size}
		d.Platform = &v1.Platform{OS: l.image.OS, Architecture: l.image.Architecture, Variant: l.image.Variant}
		index.Manifests = append(index.Manifests, d)
		for d, data := range l.blobs {
			blobs[d] = data
		}
	}
	data, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	all := v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}
	all.Annotations = map[string]string{v1.AnnotationRefName: registry + "/" + name + ":" + r.version}
	blobs[all.Digest] = data
	top, err := json.Marshal(v1.Index{Versioned: index.Versioned, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{all}})
	if err != nil {
		return nil, err
	}
	files := []file{{name: v1.ImageIndexFile, data: top}, {name: v1.ImageLayoutFile, data: []byte(`{"imageLayoutVersion":"` + v1.ImageLayoutVersion + `"}`)}}
	for d, data := range blobs {
		files = append(files, file{name: filepath.ToSlash(blob(d)), data: data})
	}
	return r.tar(files)
}

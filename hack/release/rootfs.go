package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// content is what an image has that a list of its parts is made of, by path without the
// first slash.
type content map[string][]byte

// statusDir has one file for each package, as scanners read it.
const statusDir = "var/lib/dpkg/status.d/"

// program is the path of the image's program.
func (l layout) program() (string, error) {
	if len(l.image.Config.Entrypoint) != 1 {
		return "", fmt.Errorf("its entrypoint is not one program: %q", l.image.Config.Entrypoint)
	}
	return strings.TrimPrefix(l.image.Config.Entrypoint[0], "/"), nil
}

// content reads the image's program, its packages, and which Debian they are of.
func (l layout) content() (content, error) {
	program, err := l.program()
	if err != nil {
		return nil, err
	}
	found := content{}
	for _, layer := range l.layers {
		if layer.MediaType != v1.MediaTypeImageLayerGzip {
			return nil, fmt.Errorf("a layer of the type %s", layer.MediaType)
		}
		if err := found.unpack(l.blobs[layer.Digest], program); err != nil {
			return nil, fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
	}
	if found[program] == nil {
		return nil, fmt.Errorf("no %s in the image", program)
	}
	return found, nil
}

// unpack takes what is wanted out of a layer.
func (c content) unpack(layer []byte, program string) error {
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return err
	}
	archive := tar.NewReader(z)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		if header.Typeflag != tar.TypeReg || (name != program && name != "etc/os-release" && !strings.HasPrefix(name, statusDir)) {
			continue
		}
		if c[name], err = io.ReadAll(archive); err != nil {
			return err
		}
	}
}

//go:build dist && images

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestDistImages: each archive is one image with its platforms, the programs in it are of
// these, and everything has the release's date.
func TestDistImages(t *testing.T) {
	both := []string{"amd64", "arm64"}
	for name, architectures := range map[string][]string{"node-agent": both, "launcher-shim": both, "cluster-controller": both, "vm-example": {"amd64"}} {
		blobs := archived(t, get(t, fmt.Sprintf("%s_%s_image.tar", name, version(t))))
		var top, index v1.Index
		parse(t, blobs["index.json"], &top)
		if len(top.Manifests) != 1 || top.Manifests[0].Annotations[v1.AnnotationRefName] != registry+"/"+name+":"+version(t) {
			t.Fatalf("%s: %+v", name, top)
		}
		parse(t, blobs[blob(top.Manifests[0].Digest)], &index)
		var found []string
		for _, m := range index.Manifests {
			found = append(found, m.Platform.Architecture)
			l := layout{name: name, manifest: m, blobs: map[digest.Digest][]byte{}}
			var manifest v1.Manifest
			parse(t, blobs[blob(m.Digest)], &manifest)
			parse(t, blobs[blob(manifest.Config.Digest)], &l.image)
			l.layers = manifest.Layers
			for _, layer := range l.layers {
				l.blobs[layer.Digest] = blobs[blob(layer.Digest)]
			}
			checkImage(t, l)
		}
		if fmt.Sprint(found) != fmt.Sprint(architectures) {
			t.Errorf("%s is for %v, want %v", name, found, architectures)
		}
	}
}

func checkImage(t *testing.T, l layout) {
	t.Helper()
	content, err := l.content()
	if err != nil {
		t.Fatalf("%s: %v", l.name, err)
	}
	name, err := l.program()
	if err != nil {
		t.Fatal(err)
	}
	program := content[name]
	if got := machine(t, program); got != "linux/"+l.manifest.Platform.Architecture || got != l.image.OS+"/"+l.image.Architecture {
		t.Errorf("%s of %s has a program of %s", l.name, l.image.Architecture, got)
	}
	if l.image.Architecture == "amd64" {
		says(t, program, path.Base(name)+" "+version(t))
	} else if !bytes.Contains(program, []byte(version(t))) {
		t.Errorf("%s of %s does not say its version", l.name, l.image.Architecture)
	}
	if l.image.Created == nil || !l.image.Created.Equal(date(t)) {
		t.Errorf("%s of %s was made at %v, want %s", l.name, l.image.Architecture, l.image.Created, date(t).Format(time.RFC3339))
	}
	bom := boms(t)[fmt.Sprintf("%s_linux_%s_image.cdx.json", l.name, l.image.Architecture)]
	want := []string{"pkg:golang/std@", "pkg:golang/" + module + "@" + version(t) + "#cmd/" + path.Base(name)}
	if l.name == "node-agent" {
		want = append(want, "pkg:golang/libvirt.org/go/libvirt@", "pkg:deb/debian/libvirt0@", "pkg:deb/debian/libc6@")
	}
	if l.name == "vm-example" {
		want = append(want, "pkg:deb/debian/qemu-system-", "pkg:deb/debian/linux-image-", "pkg:deb/debian/busybox-static@", "pkg:deb/debian/seabios@")
	}
	for _, part := range want {
		if bom.Components == nil || !names(bom, part) {
			t.Errorf("%s of %s: its list has no %s", l.name, l.image.Architecture, part)
		}
	}
	if strings.Contains(fmt.Sprint(bom.Components), "arch="+map[string]string{"amd64": "arm64", "arm64": "amd64"}[l.image.Architecture]) {
		t.Errorf("%s of %s has packages of the other architecture", l.name, l.image.Architecture)
	}
}

func parse(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// archived are the files of a .tar, all of the release's date.
func archived(t *testing.T, packed []byte) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(packed)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(date(t)) {
			t.Errorf("%s is of %s", header.Name, header.ModTime)
		}
		if found[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

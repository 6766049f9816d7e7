package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestAVersionIsOne(t *testing.T) {
	for _, version := range []string{"", "0.2.0", "v0.2", "v0.2.0 x", "v0.2.0-3-gabcdef-dirty/x"} {
		if err := run(t.Context(), []string{"-version", version, "-out", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// TestWhoSigns has a cosign that writes down what it is asked for.
func TestWhoSigns(t *testing.T) {
	for _, c := range []struct {
		name, cosign, key string
		signed, fails     bool
	}{
		{"no cosign", "", "a.key", false, false},
		{"no key", "#!/bin/sh\necho $* >>$ASKED\n", "", false, false},
		{"both", "#!/bin/sh\necho $* >>$ASKED\n", "a.key", true, false},
		{"it fails", "#!/bin/sh\necho $* >>$ASKED; exit 1\n", "a.key", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			asked := filepath.Join(dir, "asked")
			t.Setenv("PATH", dir)
			t.Setenv("COSIGN_KEY", c.key)
			t.Setenv("ASKED", asked)
			if c.cosign != "" {
				if err := os.WriteFile(filepath.Join(dir, "cosign"), []byte(c.cosign), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := sign(t.Context(), "dist/SHA256SUMS"); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
			said, err := os.ReadFile(asked)
			if c.signed && string(said) != "sign-blob --yes --key a.key --bundle dist/SHA256SUMS.bundle dist/SHA256SUMS\n" || !c.signed && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("cosign was asked %q, %v", said, err)
			}
		})
	}
}

// image writes a layout of an image without layers.
func image(t *testing.T, dir, architecture string) {
	t.Helper()
	put := func(name string, data []byte) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write := func(mediaType string, v any) v1.Descriptor {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		put(blob(d.Digest), data)
		return d
	}
	config := write(v1.MediaTypeImageConfig, v1.Image{Platform: v1.Platform{OS: "linux", Architecture: architecture}})
	manifest := write(v1.MediaTypeImageManifest, v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config})
	data, err := json.Marshal(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []v1.Descriptor{manifest}})
	if err != nil {
		t.Fatal(err)
	}
	put(v1.ImageIndexFile, data)
}

// TestLayoutsThatAreNot: another architecture's image, or a blob that was changed.
func TestLayoutsThatAreNot(t *testing.T) {
	dir := t.TempDir()
	image(t, filepath.Join(dir, "arm64"), "amd64")
	if _, err := open(dir, "program"); err == nil || !strings.Contains(err.Error(), "linux/amd64") {
		t.Errorf("amd64's image for arm64: %v", err)
	}
	dir = t.TempDir()
	image(t, filepath.Join(dir, "arm64"), "arm64")
	layouts, err := open(dir, "program")
	if err != nil || len(layouts) != 1 {
		t.Fatalf("%d, %v", len(layouts), err)
	}
	for d := range layouts[0].blobs {
		if err := os.WriteFile(filepath.Join(dir, "arm64", blob(d)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(dir, "program"); err == nil || !strings.Contains(err.Error(), "blob") {
		t.Errorf("a changed blob: %v", err)
	}
}

func TestPackagesOfAnImage(t *testing.T) {
	c := content{
		"etc/os-release":      []byte("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=\"12\"\n"),
		statusDir + "libx++1": []byte("Package: libx++1\nArchitecture: arm64\nVersion: 2:1.0+deb12u1~x\nDescription: x\n Version: 9\n"),
	}
	found := map[string]bool{}
	for _, p := range c.packages() {
		found[p.Name+" "+p.Version+" "+p.PackageURL] = true
	}
	for _, want := range []string{"debian 12 ", "libx++1 2:1.0+deb12u1~x pkg:deb/debian/libx%2B%2B1@2%3A1.0%2Bdeb12u1~x?arch=arm64&distro=debian-12"} {
		if !found[want] {
			t.Errorf("no %q in %v", want, found)
		}
	}
}

// TestTheSameFilesAreTheSameArchive in whatever order they were found.
func TestTheSameFilesAreTheSameArchive(t *testing.T) {
	r := release{date: time.Unix(1, 0)}
	one, err := r.tarGz([]file{{name: "a"}, {name: "b", data: []byte("x"), program: true}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.tarGz([]file{{name: "b", data: []byte("x"), program: true}, {name: "a"}})
	if err != nil || string(one) != string(two) {
		t.Errorf("not the same, %v", err)
	}
}

// manifestsOf is what a version's manifests say.
func manifestsOf(t *testing.T, r release) map[string]string {
	t.Helper()
	files, _, err := r.manifests(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[f.name] = string(f.data)
	}
	return found
}

func TestManifestsDeleteNoVMs(t *testing.T) {
	found := manifestsOf(t, release{version: "v9.8.7", root: "../.."})
	for name, text := range found {
		if crds := strings.Contains(text, "name: virtualmachineinstances.kubevirt.io\n"); crds != (name == "vmgrace-crds.yaml") {
			t.Errorf("%s has KubeVirt's CRDs: %v", name, crds)
		}
	}
}

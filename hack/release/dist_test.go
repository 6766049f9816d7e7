//go:build dist

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"debug/macho"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"sigs.k8s.io/yaml"
)

var dist = flag.String("dist", "", "the release that is checked")

// get reads a file of the release.
func get(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(*dist, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// version is what SHA256SUMS calls the release.
func version(t *testing.T) string {
	t.Helper()
	found := regexp.MustCompile(`vmgrace_(v.*)_sbom\.tar\.gz`).FindSubmatch(get(t, sumsFile))
	if found == nil {
		t.Fatal("no version")
	}
	return string(found[1])
}

// unpacked are the files of a .tar.gz.
func unpacked(t *testing.T, packed []byte) map[string]file {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]file{}
	for archive := tar.NewReader(z); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = file{header.Name, data, header.Mode&0o111 != 0}
	}
}

// TestDistHasAChecksumOfEachFile as sha256sum -c reads them.
func TestDistHasAChecksumOfEachFile(t *testing.T) {
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", sumsFile)
	check.Dir = *dist
	out, err := check.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	entries, err := os.ReadDir(*dist)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, sumsFile) && !strings.Contains(string(out), name+": OK\n") {
			t.Errorf("%s has no checksum", name)
		}
	}
}

// TestDistPlugins: each archive has the program of its platform, as krew's manifest says.
func TestDistPlugins(t *testing.T) {
	var krew struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, Sha256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(get(t, "kubectl-vmgrace.krew.yaml"), &krew); err != nil {
		t.Fatal(err)
	}
	v := version(t)
	if krew.Spec.Version != v || len(krew.Spec.Platforms) != 4 {
		t.Errorf("%s, %d platforms", krew.Spec.Version, len(krew.Spec.Platforms))
	}
	for _, p := range krew.Spec.Platforms {
		goos, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		name := fmt.Sprintf("kubectl-vmgrace_%s_%s_%s.tar.gz", v, goos, arch)
		if want := "https://github.com/vmgrace/vmgrace/releases/download/" + v + "/" + name; p.URI != want {
			t.Errorf("%s, want %s", p.URI, want)
		}
		packed := get(t, name)
		if want := fmt.Sprintf("%x", sha256.Sum256(packed)); p.Sha256 != want {
			t.Errorf("%s: checksum %s, want %s", name, p.Sha256, want)
		}
		program, ok := unpacked(t, packed)[p.Bin]
		if !ok || !program.program || machine(t, program.data) != goos+"/"+arch {
			t.Errorf("%s: %v, %s", name, ok, machine(t, program.data))
		}
		if goos == runtime.GOOS && arch == runtime.GOARCH {
			says(t, program.data, "kubectl-vmgrace "+v)
		}
	}
}

// machine is the platform that a program is for.
func machine(t *testing.T, program []byte) string {
	t.Helper()
	if f, err := elf.NewFile(bytes.NewReader(program)); err == nil {
		return map[elf.Machine]string{elf.EM_X86_64: "linux/amd64", elf.EM_AARCH64: "linux/arm64"}[f.Machine]
	}
	f, err := macho.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	return map[macho.Cpu]string{macho.CpuAmd64: "darwin/amd64", macho.CpuArm64: "darwin/arm64"}[f.Cpu]
}

// says asks a program of this machine for its version.
func says(t *testing.T, program []byte, want string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

func TestDistManifestsNameTheirImages(t *testing.T) {
	for name, images := range map[string]int{"vmgrace.yaml": 2, "vmgrace-beside-kubevirt.yaml": 2, "vmgrace-crds.yaml": 0} {
		text := string(get(t, name))
		for document := range strings.SplitSeq(text, "\n---\n") {
			var object struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.APIVersion == "" || object.Kind == "" {
				t.Errorf("%s: %v:\n%s", name, err, document)
			}
		}
		all := regexp.MustCompile(`(?m)^[ -]*image: (\S+)$`).FindAllStringSubmatch(text, -1)
		if len(all) != images {
			t.Errorf("%s: %d images", name, len(all))
		}
		for _, image := range all {
			if !strings.HasPrefix(image[1], registry+"/") || !strings.HasSuffix(image[1], ":"+version(t)) {
				t.Errorf("%s names %s", name, image[1])
			}
		}
	}
}

func TestDistChartIsOfTheVersion(t *testing.T) {
	v := strings.TrimPrefix(version(t), "v")
	content := unpacked(t, get(t, "vmgrace-"+v+".tgz"))
	for name, want := range map[string][]string{
		"vmgrace/Chart.yaml":             {"version: " + v + "\n", "appVersion: v" + v + "\n", "{name: crds, version: " + v + ","},
		"vmgrace/charts/crds/Chart.yaml": {"version: " + v + "\n"},
	} {
		for _, w := range want {
			if !strings.Contains(string(content[name].data), w) {
				t.Errorf("%s does not say %q:\n%s", name, w, content[name].data)
			}
		}
	}
}

// boms are the lists of what is in each program and image.
func boms(t *testing.T) map[string]cdx.BOM {
	t.Helper()
	found := map[string]cdx.BOM{}
	for name, f := range unpacked(t, get(t, "vmgrace_"+version(t)+"_sbom.tar.gz")) {
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(f.data), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found[name] = bom
	}
	return found
}

// names says whether a list has a part; a URL that ends in @ stands for any version.
func names(bom cdx.BOM, url string) bool {
	return slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool { return strings.HasPrefix(c.PackageURL, url) })
}

func TestDistListsThePartsOfPrograms(t *testing.T) {
	all := boms(t)
	for _, p := range platforms {
		bom, ok := all[fmt.Sprintf("kubectl-vmgrace_%s_%s.cdx.json", p.OS, p.Arch)]
		if !ok {
			t.Fatalf("no list of kubectl-vmgrace of %v", p)
		}
		for _, part := range []string{"pkg:golang/std@", "pkg:golang/k8s.io/client-go@", "pkg:golang/github.com/spf13/cobra@"} {
			if !names(bom, part) {
				t.Errorf("%v: no %s", p, part)
			}
		}
		if bom.Metadata.Component.Version != version(t) {
			t.Errorf("it is a list of %+v", bom.Metadata.Component)
		}
	}
}

// TestDistIsTheSameFromAnotherDirectory builds all but the images again, out of a copy of
// the tree.
func TestDistIsTheSameFromAnotherDirectory(t *testing.T) {
	sbom := "vmgrace_" + version(t) + "_sbom.tar.gz" // has that of the images, too
	copied := filepath.Join(t.TempDir(), "somewhere", "else")
	for _, dir := range []string{"api", "cmd", "deploy", "internal", "pkg"} {
		if err := os.CopyFS(filepath.Join(copied, dir), os.DirFS(filepath.Join("../..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum", "LICENSE"} {
		data, err := os.ReadFile(filepath.Join("../..", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	again := release{version: version(t), root: copied, out: t.TempDir(), date: date(t)}
	if err := again.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadDir(again.out)
	if err != nil || len(made) < 10 {
		t.Fatalf("%d files, %v", len(made), err)
	}
	for _, e := range made {
		if e.Name() == sbom || e.Name() == sumsFile {
			continue
		}
		data, err := os.ReadFile(filepath.Join(again.out, e.Name()))
		if err != nil || !bytes.Equal(data, get(t, e.Name())) {
			t.Errorf("%s is another one (%v)", e.Name(), err)
		}
	}
}

// date is that of the release's archives.
func date(t *testing.T) time.Time {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(get(t, "vmgrace_"+version(t)+"_sbom.tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	header, err := tar.NewReader(z).Next()
	if err != nil {
		t.Fatal(err)
	}
	return header.ModTime.UTC()
}

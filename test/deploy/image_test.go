package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// image is an unpacked OCI archive of make images.
type image struct {
	root   string // the image's file system
	config struct {
		User       string
		Entrypoint []string
		Labels     map[string]string
	}
	created string
}

func openImage(t *testing.T, name string) image {
	t.Helper()
	home := os.Getenv("VMGRACE_CLUSTER")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		home = filepath.Join(user, ".cache", "vmgrace-cluster")
	}
	archive := filepath.Join(home, "product", name+".tar")
	if _, err := os.Stat(archive); err != nil {
		t.Fatalf("%v: run make images", err)
	}
	dir := t.TempDir()
	i := image{root: filepath.Join(dir, "root")}
	if err := os.Mkdir(i.root, 0o755); err != nil {
		t.Fatal(err)
	}
	tar(t, "-xf", archive, "-C", dir)
	var index, manifest struct {
		Manifests, Layers []blob
		Config            blob
	}
	parse(t, filepath.Join(dir, "index.json"), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "docker.io/vmgrace/"+name+":"+release(t) {
		t.Fatalf("%s holds %+v", archive, index.Manifests)
	}
	parse(t, index.Manifests[0].path(dir), &manifest)
	for _, layer := range manifest.Layers {
		tar(t, "-xzf", layer.path(dir), "-C", i.root)
	}
	var config struct {
		Created string
		Config  any
	}
	config.Config = &i.config
	parse(t, manifest.Config.path(dir), &config)
	i.created = config.Created
	return i
}

type blob struct {
	Digest      string
	Annotations map[string]string
}

func (b blob) path(dir string) string {
	return filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(b.Digest, "sha256:"))
}

func parse(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func tar(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
}

func TestImagesSayWhatTheyAre(t *testing.T) {
	for name, entrypoint := range map[string]string{"node-agent": "/usr/bin/node-agent", "launcher-shim": "/launcher-shim", "cluster-controller": "/cluster-controller", "vm-example": "/launcher-shim"} {
		i := openImage(t, name)
		for _, label := range []string{"title", "description", "source", "licenses", "version"} {
			if i.config.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("%s has no label for its %s", name, label)
			}
		}
		if len(i.config.Entrypoint) != 1 || i.config.Entrypoint[0] != entrypoint {
			t.Errorf("%s: entrypoint %v", name, i.config.Entrypoint)
		}
		if !strings.HasPrefix(i.created, "1970-01-01T00:00:00") {
			t.Errorf("%s: the date %s is in it, so that no two builds are the same", name, i.created)
		}
		out, err := exec.CommandContext(t.Context(), "chroot", i.root, entrypoint, "--version").CombinedOutput()
		if want := strings.Replace(name, "vm-example", "launcher-shim", 1) + " " + i.config.Labels["org.opencontainers.image.version"]; err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s --version: %v, %q, want %q", name, err, out, want)
		}
	}
}

func TestImagesOfOneProgramHaveNothingElseAndNoRoot(t *testing.T) {
	for name, want := range map[string]string{"launcher-shim": "[LICENSE launcher-shim]", "cluster-controller": "[LICENSE cluster-controller]"} {
		i := openImage(t, name)
		if i.config.User != "65532:65532" {
			t.Errorf("%s: user %q", name, i.config.User)
		}
		if got := fmt.Sprint(files(t, i.root)); got != want {
			t.Errorf("files %s, want %s", got, want)
		}
	}
}

func TestTheAgentsImageHasNothingButTheAgentAndLibraries(t *testing.T) {
	i := openImage(t, "node-agent")
	for _, file := range files(t, i.root) {
		library := strings.HasPrefix(file, "usr/lib") && strings.Contains(file, ".so")
		about := strings.HasPrefix(file, "usr/share/doc/") || strings.HasPrefix(file, "var/lib/dpkg/status.d/") || file == "etc/os-release"
		if !library && !about && file != "usr/bin/node-agent" {
			t.Errorf("%s is in the image", file)
		}
	}
}

// Given the agent's image, then its libvirt0 is at least the version of which
// docs/architecture.md says that it has the fix of CVE-2024-4418.
func TestTheAgentsImageHasTheLibvirtThatIsWrittenOf(t *testing.T) {
	const atLeast = "11.3.0"
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "CVE-2024-4418") || !strings.Contains(string(text), atLeast) {
		t.Errorf("docs/architecture.md does not say that libvirt0 %s has the fix of CVE-2024-4418", atLeast)
	}
	about, err := os.ReadFile(filepath.Join(openImage(t, "node-agent").root, "var/lib/dpkg/status.d/libvirt0"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(about), "\nVersion: ")
	version, _, _ := strings.Cut(rest, "\n")
	if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", version, "ge", atLeast).CombinedOutput(); err != nil {
		t.Errorf("libvirt0 %q in the image is older than %s: %v %s", version, atLeast, err, out)
	}
}

func files(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			path, err = filepath.Rel(root, path)
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Given the go build commands of the Makefile and the Dockerfile, then both have the same
// flags, except for the version. Otherwise the images would have other programs than make
// build makes.
func TestTheDockerfileBuildsAsTheMakefileDoes(t *testing.T) {
	flags := func(file string) map[string]bool {
		found := map[string]bool{}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			_, command, ok := strings.Cut(line, "go build ")
			if !ok || !strings.Contains(command, "./cmd/") || strings.Contains(command, "-race") || strings.Contains(command, "./cmd/kubectl-") {
				continue // no image contains kubectl's plugins
			}
			for _, flag := range []string{"-trimpath", "-tags", "-s -w"} {
				found[filepath.Base(strings.Fields(command[strings.Index(command, "./cmd/"):])[0])+" "+flag] = strings.Contains(command, flag)
			}
		}
		return found
	}
	inMake, inDocker := flags("../../Makefile"), flags("../../Dockerfile")
	if diff := cmp.Diff(inMake, inDocker); diff != "" || len(inMake) != 9 {
		t.Errorf("(-Makefile +Dockerfile):\n%s", diff)
	}
}

package deploy

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// release returns the version that the manifests name.
func release(t *testing.T) string {
	t.Helper()
	tags := regexp.MustCompile(`(?m)newTag: (.*)$`).FindAllStringSubmatch(read(t, "deploy/version/kustomization.yaml"), -1)
	if len(tags) == 0 {
		t.Fatal("no version")
	}
	for _, tag := range tags {
		if tag[1] != tags[0][1] {
			t.Errorf("two versions, %s and %s", tag[1], tags[0][1])
		}
	}
	return tags[0][1]
}

func TestTheVersionIsAReleasedOne(t *testing.T) {
	v := release(t)
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(v) {
		t.Errorf("%q is no version", v)
	}
	if newest := regexp.MustCompile(`(?m)^## (v\S+)`).FindStringSubmatch(read(t, "CHANGELOG.md")); newest == nil || newest[1] != v {
		t.Errorf("the manifests name %s, the CHANGELOG's newest version is %v", v, newest)
	}
}

// images returns the images that the manifests name.
func images(t *testing.T) []string {
	t.Helper()
	all := read(t, "deploy/examples/launcher.yaml")
	for _, dir := range []string{"deploy", "deploy/daemonset", "deploy/monitoring", "deploy/controller", "deploy/beside-kubevirt"} {
		all += render(t, dir)
	}
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:- )?image: (\S+)$`).FindAllStringSubmatch(all, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestTheManifestsNameTheImagesThatMakeImagesMakes(t *testing.T) {
	v := release(t)
	for _, env := range []string{"VERSION=", "VERSION=" + v} {
		names := exec.CommandContext(t.Context(), root+"hack/images.sh", "--names")
		names.Env = append(os.Environ(), env)
		out, err := names.Output()
		if err != nil {
			t.Fatal(err)
		}
		made := strings.Fields(string(out))
		for _, image := range images(t) {
			if !slices.Contains(made, image) {
				t.Errorf("the manifests name %s; make images %s makes %v", image, env, made)
			}
		}
	}
	other := exec.CommandContext(t.Context(), root+"hack/images.sh", "--names")
	other.Env = append(os.Environ(), "VERSION=v9.8.7")
	if out, err := other.Output(); err != nil || strings.Count(string(out), ":v9.8.7\n") != strings.Count(string(out), "\n") {
		t.Errorf("make images VERSION=v9.8.7 makes %s, %v", out, err)
	}
}

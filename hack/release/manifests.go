package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// manifestDirs are the files of manifests, and the directory of deploy that each is
// made of. KubeVirt's CRDs are in a file of their own: whoever deletes those deletes all VMs.
var manifestDirs = map[string]string{
	"vmgrace.yaml":                 ".",
	"vmgrace-crds.yaml":            "crds",
	"vmgrace-beside-kubevirt.yaml": "beside-kubevirt",
}

// manifests are what kubectl apply -k makes, with the images of this version.
func (r release) manifests(context.Context) (files, boms []file, err error) {
	for name, dir := range manifestDirs {
		data, err := r.kustomize(dir)
		if err != nil {
			return nil, nil, fmt.Errorf("making %s: %w", name, err)
		}
		files = append(files, file{name: name, data: data})
	}
	return files, nil, nil
}

// kustomize builds a directory of deploy.
func (r release) kustomize(dir string) ([]byte, error) {
	overlay, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(overlay) //nolint:errcheck // what is left of it harms nobody
	text, err := r.overlay(overlay, dir)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		return nil, err
	}
	var objects []string
	for _, resource := range built.Resources() {
		// Not by AsYaml: what it writes for a folded text reads as another one.
		var object map[string]any
		if err := resource.YNode().Decode(&object); err != nil {
			return nil, fmt.Errorf("%s: %w", resource.GetName(), err)
		}
		data, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resource.GetName(), err)
		}
		objects = append(objects, string(data))
	}
	return []byte(strings.Join(objects, "---\n")), nil
}

// overlay is a kustomization in a directory outside of the tree.
func (r release) overlay(in, dir string) (string, error) {
	in, err := filepath.EvalSymlinks(in)
	if err != nil {
		return "", err
	}
	deploy, err := filepath.Abs(filepath.Join(r.root, "deploy"))
	if err != nil {
		return "", err
	}
	deploy, err = filepath.EvalSymlinks(deploy)
	if err != nil {
		return "", err
	}
	path, err := filepath.Rel(in, filepath.Join(deploy, dir))
	if err != nil {
		return "", err
	}
	text := "resources:\n- " + path + "\nimages:\n"
	for _, name := range []string{"node-agent", "cluster-controller"} {
		text += fmt.Sprintf("- {name: %s/%s, newTag: %s}\n", registry, name, r.version)
	}
	return text, nil
}

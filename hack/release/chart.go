package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// chart is deploy/chart as helm package packs it, with this version.
func (r release) chart(context.Context) (files, boms []file, err error) {
	version := strings.TrimPrefix(r.version, "v")
	dir := filepath.Join(r.root, "deploy", "chart")
	var content []file
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if filepath.Base(name) == "Chart.yaml" {
			data = withVersion(data, version)
		}
		content = append(content, file{name: "vmgrace/" + filepath.ToSlash(name), data: data})
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the chart: %w", err)
	}
	packed, err := r.tarGz(content)
	if err != nil {
		return nil, nil, err
	}
	return []file{{name: "vmgrace-" + version + ".tgz", data: packed}}, nil, nil
}

// withVersion replaces each version in a Chart.yaml: its own, its program's, its parts'.
func withVersion(chart []byte, version string) []byte {
	chart = regexp.MustCompile(`(?m)^version: .*$`).ReplaceAll(chart, []byte("version: "+version))
	chart = regexp.MustCompile(`(?m)^appVersion: .*$`).ReplaceAll(chart, []byte("appVersion: v"+version))
	return regexp.MustCompile(`(name: crds, version: )[^,]*`).ReplaceAll(chart, []byte("${1}"+version))
}

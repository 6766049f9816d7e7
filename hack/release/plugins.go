package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
)

// platforms are those of kubectl vmgrace.
var platforms = []struct{ OS, Arch string }{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// download is where the files of a release are.
const download = "https://github.com/vmgrace/vmgrace/releases/download/"

// krew is the plugin's manifest for krew.
var krew = template.Must(template.New("krew").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: vmgrace
spec:
  version: {{.Version}}
  homepage: https://github.com/vmgrace/vmgrace
  shortDescription: Shuts VMs in pods down, moves them, drains nodes
  description: |
    Shows the VMs that vmgrace guards, with their grace periods and migrations,
    shuts a VM down, moves it to another node, drains a node, and says what keeps
    a node from being empty.
  platforms:
{{- range .Archives}}
    - selector:
        matchLabels: {os: {{.OS}}, arch: {{.Arch}}}
      uri: {{.URI}}
      sha256: {{.Sum}}
      bin: kubectl-vmgrace
{{- end}}
`))

// archive is one of the manifest.
type archive struct{ OS, Arch, URI, Sum string }

// plugins are kubectl vmgrace for each platform, and krew's manifest of them.
func (r release) plugins(ctx context.Context) (files, boms []file, err error) {
	var archives []archive
	for _, p := range platforms {
		program, err := r.build(ctx, p.OS, p.Arch)
		if err != nil {
			return nil, nil, err
		}
		packed, err := r.pack(program)
		if err != nil {
			return nil, nil, err
		}
		bom, err := r.programBOM("kubectl-vmgrace", p.OS, p.Arch, program)
		if err != nil {
			return nil, nil, err
		}
		boms = append(boms, bom)
		name := fmt.Sprintf("kubectl-vmgrace_%s_%s_%s.tar.gz", r.version, p.OS, p.Arch)
		files = append(files, file{name: name, data: packed})
		archives = append(archives, archive{p.OS, p.Arch, download + r.version + "/" + name, fmt.Sprintf("%x", sha256.Sum256(packed))})
	}
	var manifest bytes.Buffer
	if err := krew.Execute(&manifest, struct {
		Version  string
		Archives []archive
	}{r.version, archives}); err != nil {
		return nil, nil, fmt.Errorf("krew's manifest: %w", err)
	}
	return append(files, file{name: "kubectl-vmgrace.krew.yaml", data: manifest.Bytes()}), boms, nil
}

// build compiles kubectl vmgrace, as make build does, but for what it says of the commit:
// a file more in the tree would change it.
func (r release) build(ctx context.Context, os_, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left of it harms nobody
	to := filepath.Join(dir, "kubectl-vmgrace")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version, "-o", to, "./cmd/kubectl-vmgrace")
	command.Dir = r.root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+os_, "GOARCH="+arch)
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building kubectl-vmgrace for %s/%s: %w\n%s", os_, arch, err, out)
	}
	return os.ReadFile(to)
}

// pack packs the program with its shell completion and its licence.
func (r release) pack(program []byte) ([]byte, error) {
	completion, err := os.ReadFile(filepath.Join(r.root, "cmd/kubectl-vmgrace/kubectl_complete-vmgrace"))
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	return r.tarGz([]file{{"kubectl-vmgrace", program, true}, {"kubectl_complete-vmgrace", completion, true}, {"LICENSE", licence, false}})
}

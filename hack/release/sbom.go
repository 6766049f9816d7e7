package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// module is the path of the product's Go module.
const module = "github.com/vmgrace/vmgrace"

// programBOM lists the Go modules that a program itself says it is made of.
func (r release) programBOM(name, goos, arch string, binary []byte) (file, error) {
	program, modules, err := r.program(name, binary)
	if err != nil {
		return file{}, fmt.Errorf("%s of %s/%s: %w", name, goos, arch, err)
	}
	return r.bom(fmt.Sprintf("%s_%s_%s.cdx.json", name, goos, arch), program, modules)
}

// imageBOMs are that of an image, with its packages, its program and the program's modules,
// and that of the program alone.
func (r release) imageBOMs(l layout) ([]file, error) {
	content, err := l.content()
	if err != nil {
		return nil, err
	}
	programPath, err := l.program()
	if err != nil {
		return nil, err
	}
	program, modules, err := r.program(path.Base(programPath), content[programPath])
	if err != nil {
		return nil, err
	}
	parts := append([]cdx.Component{program}, modules...)
	parts = append(parts, content.packages()...)
	image := cdx.Component{
		Type: cdx.ComponentTypeContainer, Name: registry + "/" + l.name, Version: r.version,
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s&repository_url=%s", l.name, url.QueryEscape(l.manifest.Digest.String()), l.image.Architecture, url.QueryEscape(registry+"/"+l.name)),
	}
	whole, err := r.bom(fmt.Sprintf("%s_linux_%s_image.cdx.json", l.name, l.image.Architecture), image, parts)
	if err != nil || path.Base(programPath) != l.name {
		return []file{whole}, err // the program of another image
	}
	alone, err := r.bom(fmt.Sprintf("%s_linux_%s.cdx.json", l.name, l.image.Architecture), program, modules)
	return []file{whole, alone}, err
}

// program describes a program of ours and its modules.
func (r release) program(name string, binary []byte) (cdx.Component, []cdx.Component, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return cdx.Component{}, nil, fmt.Errorf("reading what it is made of: %w", err)
	}
	program := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: name, Version: r.version,
		PackageURL: goURL(module, r.version) + "#cmd/" + name,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(binary))}},
	}
	parts := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, library(m.Path, m.Version))
	}
	return program, parts, nil
}

// library is a Go module.
func library(path, version string) cdx.Component {
	return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: goURL(path, version)}
}

func goURL(path, version string) string { return "pkg:golang/" + path + "@" + url.QueryEscape(version) }

// packages are the distribution and its packages in the image, if it has any.
func (c content) packages() []cdx.Component {
	var found []cdx.Component
	release := fields(c["etc/os-release"], "=")
	if id := release["ID"]; id != "" {
		found = append(found, cdx.Component{Type: cdx.ComponentTypeOS, Name: id, Version: release["VERSION_ID"], Description: release["PRETTY_NAME"]})
	}
	for name, data := range c {
		if !strings.HasPrefix(name, statusDir) {
			continue
		}
		about := fields(data, ":")
		found = append(found, cdx.Component{
			Type: cdx.ComponentTypeLibrary, Name: about["Package"], Version: about["Version"], Publisher: about["Maintainer"],
			PackageURL: fmt.Sprintf("pkg:deb/%s/%s@%s?arch=%s&distro=%s-%s", release["ID"], url.QueryEscape(about["Package"]),
				url.QueryEscape(about["Version"]), about["Architecture"], release["ID"], release["VERSION_ID"]),
		})
	}
	return found
}

// fields are the lines NAME, separator, value of a file; lines that go on are left out.
func fields(data []byte, separator string) map[string]string {
	found := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), separator); ok && !strings.HasPrefix(name, " ") {
			found[name] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return found
}

// bom is an SBOM in CycloneDX's form, without what is random in one.
func (r release) bom(name string, of cdx.Component, parts []cdx.Component) (file, error) {
	for i := range parts {
		parts[i].BOMRef = cmp.Or(parts[i].PackageURL, parts[i].Name)
	}
	slices.SortFunc(parts, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	of.BOMRef = "of:" + of.PackageURL // an image's program is also one of its parts
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &of}
	bom.Components = &parts
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom); err != nil {
		return file{}, fmt.Errorf("writing %s: %w", name, err)
	}
	return file{name: name, data: text.Bytes()}, nil
}

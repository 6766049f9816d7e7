package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// sumsFile has the checksum of each other file.
const sumsFile = "SHA256SUMS"

// release is what is released, from where, and where to.
type release struct {
	version            string
	date               time.Time
	root, out, layouts string
}

// make writes all files but the signature.
func (r release) make(ctx context.Context) error {
	var all, boms []file
	for _, part := range []func(context.Context) (files, boms []file, err error){r.manifests, r.chart, r.plugins, r.images} {
		files, about, err := part(ctx)
		if err != nil {
			return err
		}
		all, boms = append(all, files...), append(boms, about...)
	}
	packed, err := r.tarGz(boms)
	if err != nil {
		return err
	}
	all = append(all, file{name: "vmgrace_" + r.version + "_sbom.tar.gz", data: packed})
	all = append(all, file{name: sumsFile, data: sums(all)})
	for _, f := range all {
		if err := os.WriteFile(filepath.Join(r.out, f.name), f.data, 0o644); err != nil {
			return fmt.Errorf("writing the release: %w", err)
		}
	}
	return nil
}

// sums is what sha256sum prints of these files.
func sums(files []file) []byte {
	var text []byte
	for _, f := range sorted(files) {
		text = fmt.Appendf(text, "%x  %s\n", sha256.Sum256(f.data), f.name)
	}
	return text
}

// sign has cosign sign a file, where there are a cosign and a key. A signature has something
// random in it: it is the one file that is not the same twice.
func sign(ctx context.Context, name string) error {
	key := os.Getenv("COSIGN_KEY")
	if !installed("cosign") || key == "" {
		fmt.Println("release: not signed: there is no cosign in $PATH, or no $COSIGN_KEY")
		return nil
	}
	command := exec.CommandContext(ctx, "cosign", "sign-blob", "--yes", "--key", key, "--bundle", name+".bundle", name)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("signing %s with cosign: %w", name, err)
	}
	return nil
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// Command release makes the files of a release out of this tree. The same sources, version,
// date, Go and image layouts give the same files, byte for byte.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var r release
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "what is released, such as v1.2.3")
	date := flags.Int64("date", 0, "date of every file, in seconds since 1970")
	flags.StringVar(&r.root, "root", "../..", "the project's directory")
	flags.StringVar(&r.out, "out", "", "an empty directory for the files")
	flags.StringVar(&r.layouts, "layouts", "", "directory of images as OCI layouts, NAME/ARCHITECTURE; empty = no images")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(r.version) {
		return fmt.Errorf("the version %q is not of the form v1.2.3", r.version)
	}
	r.date = time.Unix(*date, 0).UTC()
	if err := r.make(ctx); err != nil {
		return err
	}
	return sign(ctx, filepath.Join(r.out, sumsFile))
}

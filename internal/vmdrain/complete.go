package vmdrain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CompleteCommand is the hidden command that Complete is the work of.
const CompleteCommand = "__complete"

// completing bounds it: somebody waits at a shell.
const completing = 3 * time.Second

// What the shell does beside that, as cobra names it: it completes file names, or not.
const (
	withFiles    = ":0"
	withoutFiles = ":4"
)

// Complete writes what the last of args may become, as kubectl asks of a plugin: a
// line each, a tab before its description, and in the end what the shell is to
// do. What cannot be found out is left out.
func Complete(ctx context.Context, args []string, out io.Writer) {
	var last string
	if n := len(args); n > 0 {
		args, last = args[:n-1], args[n-1]
	}
	o := &Options{}
	own, connection := o.flags()
	own.AddFlagSet(connection)
	own.SetOutput(io.Discard)
	err := own.Parse(args)
	var lines []string
	then := withoutFiles
	var missing *pflag.ValueRequiredError
	name, value, assigned := strings.Cut(last, "=")
	switch {
	case assigned && strings.HasPrefix(name, "--"):
		lines, then = o.values(name[2:], value)
	case strings.HasPrefix(last, "-"):
		lines = flagsLike(own, last)
	case errors.As(err, &missing): // last is the value of the flag before it
		lines, then = o.values(missing.GetFlag().Name, last)
	default:
		lines = slices.DeleteFunc(o.nodesLike(ctx, last), func(name string) bool { return slices.Contains(own.Args(), name) })
	}
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintln(out, then)
}

// values are those that a flag may have.
func (o *Options) values(flag, prefix string) (all []string, then string) {
	switch flag {
	case "dry-run":
		all = []string{dryRunNone, dryRunClient, dryRunServer}
	case "output":
		all = []string{outputJSON}
	case "context", "cluster", "user":
		all = o.configured(flag)
	case "kubeconfig", "certificate-authority", "client-certificate", "client-key":
		return nil, withFiles
	}
	return like(all, prefix), withoutFiles
}

// configured are the names of a kind in the kubeconfig.
func (o *Options) configured(kind string) []string {
	cfg, err := o.rules.Load()
	switch {
	case err != nil:
		return nil
	case kind == "context":
		return slices.Collect(maps.Keys(cfg.Contexts))
	case kind == "cluster":
		return slices.Collect(maps.Keys(cfg.Clusters))
	default:
		return slices.Collect(maps.Keys(cfg.AuthInfos))
	}
}

func like(all []string, prefix string) []string {
	slices.Sort(all)
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

func flagsLike(all *pflag.FlagSet, prefix string) (lines []string) {
	all.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && strings.HasPrefix("--"+f.Name, prefix) {
			first, _, _ := strings.Cut(f.Usage, "\n")
			lines = append(lines, "--"+f.Name+"\t"+first)
		}
	})
	return lines
}

// nodesLike are the nodes whose names begin so.
func (o *Options) nodesLike(ctx context.Context, prefix string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completing)
	defer cancel()
	cfg, err := o.config()
	if err != nil {
		return nil
	}
	live, err := client.New(ofCalls(cfg), client.Options{})
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := live.List(ctx, list); err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return like(names, prefix)
}

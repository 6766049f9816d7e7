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

// CompleteCommand is the hidden command by which a shell calls Complete.
const CompleteCommand = "__complete"

// completionTimeout bounds Complete: the shell waits for it.
const completionTimeout = 3 * time.Second

// Directives of cobra's completion protocol: whether the shell completes file names, too.
const (
	directiveFiles   = ":0"
	directiveNoFiles = ":4"
)

// Complete writes the completions of the last of args in cobra's protocol, which kubectl
// expects of a plugin: one a line, with a description after a tab, then the directive.
// After an error of the kubeconfig or the API server it writes fewer completions.
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
	directive := directiveNoFiles
	var missing *pflag.ValueRequiredError
	name, value, assigned := strings.Cut(last, "=")
	switch {
	case assigned && strings.HasPrefix(name, "--"):
		lines, directive = o.values(name[2:], value)
	case strings.HasPrefix(last, "-"):
		lines = flagsWithPrefix(own, last)
	case errors.As(err, &missing): // last is the value of the flag before it
		lines, directive = o.values(missing.GetFlag().Name, last)
	default:
		lines = slices.DeleteFunc(o.nodesWithPrefix(ctx, last), func(name string) bool { return slices.Contains(own.Args(), name) })
	}
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintln(out, directive)
}

// values returns the possible values of a flag that begin with prefix.
func (o *Options) values(flag, prefix string) (all []string, directive string) {
	switch flag {
	case "dry-run":
		all = []string{dryRunNone, dryRunClient, dryRunServer}
	case "output":
		all = []string{outputJSON}
	case "context", "cluster", "user":
		all = o.kubeconfigNames(flag)
	case "kubeconfig", "certificate-authority", "client-certificate", "client-key":
		return nil, directiveFiles
	}
	return withPrefix(all, prefix), directiveNoFiles
}

// kubeconfigNames returns the names of the contexts, clusters or users in the kubeconfig.
func (o *Options) kubeconfigNames(kind string) []string {
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

// withPrefix sorts all, and drops what does not begin with prefix.
func withPrefix(all []string, prefix string) []string {
	slices.Sort(all)
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

func flagsWithPrefix(all *pflag.FlagSet, prefix string) (lines []string) {
	all.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && strings.HasPrefix("--"+f.Name, prefix) {
			first, _, _ := strings.Cut(f.Usage, "\n")
			lines = append(lines, "--"+f.Name+"\t"+first)
		}
	})
	return lines
}

// nodesWithPrefix returns the names of nodes that begin with prefix.
func (o *Options) nodesWithPrefix(ctx context.Context, prefix string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	cfg, err := o.config()
	if err != nil {
		return nil
	}
	live, err := client.New(callConfig(cfg), client.Options{})
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
	return withPrefix(names, prefix)
}

package drain

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// completionTimeout bounds the completion of names: the shell waits for it.
const completionTimeout = 3 * time.Second

// addCompletions adds the completions of nodes and of the flags' values. After an error of
// the kubeconfig or the API server there are fewer. Only values that are files are completed
// with file names.
func (o *Options) addCompletions(cmd *cobra.Command, out io.Writer) {
	NoFiles(cmd, out)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, named []string, prefix string) ([]string, cobra.ShellCompDirective) {
		others := slices.DeleteFunc(o.connection.Nodes(cmd.Context()), func(name string) bool { return slices.Contains(named, name) })
		return WithPrefix(others, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	AddValues(cmd, "dry-run", func(context.Context) []string { return []string{dryRunNone, dryRunClient, dryRunServer} })
	AddValues(cmd, "output", func(context.Context) []string { return []string{outputJSON} })
	o.connection.AddCompletions(cmd, out)
}

// NoFiles makes a command, which writes to out, complete no file names where nothing else
// is completed.
func NoFiles(cmd *cobra.Command, out io.Writer) {
	cmd.SetOut(noFiles{out})
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
}

// noFiles replaces the directive that cobra writes after a wrong flag, to complete file
// names, by that to complete none.
type noFiles struct{ io.Writer }

func (w noFiles) Write(line []byte) (int, error) {
	if string(line) == ":0\n" {
		line = []byte(":4\n")
	}
	return w.Writer.Write(line)
}

// WithPrefix sorts all, and drops what does not begin with prefix.
func WithPrefix(all []string, prefix string) []string {
	slices.Sort(all)
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

// Nodes returns the names of the nodes, or none after an error.
func (c *Connection) Nodes(ctx context.Context) []string {
	return c.Names(ctx, corev1.SchemeGroupVersion.WithResource("nodes"), "")
}

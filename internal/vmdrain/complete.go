package vmdrain

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// completionTimeout bounds the completion of nodes: the shell waits for it.
const completionTimeout = 3 * time.Second

// addCompletions adds the completions of nodes and of the flags' values. After an error of
// the kubeconfig or the API server there are fewer. Only values that are files are completed
// with file names.
func (o *Options) addCompletions(cmd *cobra.Command, out io.Writer) {
	cmd.SetOut(noFiles{out})
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, named []string, prefix string) ([]string, cobra.ShellCompDirective) {
		others := slices.DeleteFunc(o.nodeNames(cmd.Context()), func(name string) bool { return slices.Contains(named, name) })
		return withPrefix(others, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	for flag, values := range map[string]func() []string{
		"dry-run": func() []string { return []string{dryRunNone, dryRunClient, dryRunServer} },
		"output":  func() []string { return []string{outputJSON} },
		"context": func() []string { return slices.Collect(maps.Keys(o.rawConfig().Contexts)) },
		"cluster": func() []string { return slices.Collect(maps.Keys(o.rawConfig().Clusters)) },
		"user":    func() []string { return slices.Collect(maps.Keys(o.rawConfig().AuthInfos)) },
	} {
		// It fails only for a flag that does not exist.
		_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return withPrefix(values(), prefix), cobra.ShellCompDirectiveNoFileComp
		})
	}
	for _, flag := range []string{"kubeconfig", "certificate-authority", "client-certificate", "client-key"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			cmd.SetOut(out)
			return nil, cobra.ShellCompDirectiveDefault
		})
	}
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

// rawConfig returns the kubeconfig. It is empty after an error.
func (o *Options) rawConfig() clientcmdapi.Config {
	cfg, _ := o.kubeconfig.RawConfig()
	return cfg
}

// withPrefix sorts all, and drops what does not begin with prefix.
func withPrefix(all []string, prefix string) []string {
	slices.Sort(all)
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

// nodeNames returns the names of the nodes, or none after an error. Its one request needs
// no discovery, which ctx would not bound.
func (o *Options) nodeNames(ctx context.Context) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	cfg, err := o.config()
	if err != nil {
		return nil
	}
	live, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil
	}
	list, err := live.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

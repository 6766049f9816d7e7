package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Connection is kubectl's flags for the connection to the API server.
type Connection struct {
	Flags *pflag.FlagSet

	agent      string // the name in the API server's log
	kubeconfig clientcmd.ClientConfig
}

// NewConnection returns the flags.
func NewConnection(agent string) *Connection {
	return newConnection(agent, clientcmd.RecommendedConfigOverrideFlags(""))
}

// NewClusterConnection returns the flags without --namespace: a node has none.
func NewClusterConnection(agent string) *Connection {
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.LongName = ""
	return newConnection(agent, names)
}

func newConnection(agent string, names clientcmd.ConfigOverrideFlags) *Connection {
	f := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	f.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(overrides, f, names)
	return &Connection{Flags: f, agent: agent, kubeconfig: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)}
}

// Config returns the configuration of clients.
func (c *Connection) Config() (*rest.Config, error) {
	cfg, err := c.kubeconfig.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	cfg.UserAgent = c.agent
	cfg.QPS = -1 // no client-side limit: the API server has priority and fairness
	return cfg, nil
}

// Namespace returns the namespace of --namespace or the kubeconfig.
func (c *Connection) Namespace() (string, error) {
	namespace, _, err := c.kubeconfig.Namespace()
	return namespace, err
}

// raw returns the kubeconfig. It is empty after an error.
func (c *Connection) raw() clientcmdapi.Config {
	cfg, _ := c.kubeconfig.RawConfig()
	return cfg
}

// AddCompletions adds the completions of the connection's flags to a command that has them.
// out is where the command writes.
func (c *Connection) AddCompletions(cmd *cobra.Command, out io.Writer) {
	AddValues(cmd, "context", func(context.Context) []string { return slices.Collect(maps.Keys(c.raw().Contexts)) })
	AddValues(cmd, "cluster", func(context.Context) []string { return slices.Collect(maps.Keys(c.raw().Clusters)) })
	AddValues(cmd, "user", func(context.Context) []string { return slices.Collect(maps.Keys(c.raw().AuthInfos)) })
	AddValues(cmd, "namespace", func(ctx context.Context) []string {
		return c.Names(ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "")
	})
	for _, flag := range []string{"kubeconfig", "certificate-authority", "client-certificate", "client-key"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			cmd.SetOut(out)
			return nil, cobra.ShellCompDirectiveDefault
		})
	}
}

// AddValues adds the completion of a flag's values.
func AddValues(cmd *cobra.Command, flag string, values func(context.Context) []string) {
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return WithPrefix(values(cmd.Context()), prefix), cobra.ShellCompDirectiveNoFileComp
	})
}

// Names returns the names of the objects of a kind, or none after an error. Its one request
// needs no discovery, which ctx would not bound.
func (c *Connection) Names(ctx context.Context, kind schema.GroupVersionResource, namespace string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	cfg, err := c.Config()
	if err != nil {
		return nil
	}
	live, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil
	}
	list, err := live.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// NewClient returns a client whose requests are bounded in time, and the scheme that it knows.
// It silences the libraries: their log lines would break a table, and errors are returned.
func NewClient(cfg *rest.Config, dryRun bool) (client.Client, *runtime.Scheme, error) {
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), kubevirt.AddToScheme(known)); err != nil {
		return nil, nil, err
	}
	live, err := client.New(callConfig(cfg), client.Options{Scheme: known, DryRun: &dryRun})
	if err != nil {
		return nil, nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	return live, known, nil
}

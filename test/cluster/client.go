package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Client runs kubectl as one identity.
type Client struct {
	// Kubeconfig is the path of a kubeconfig that works on this machine.
	Kubeconfig string

	kubectl string // kubectl's path
	dir     string // directory for its own files
}

// Kubectl runs kubectl and returns what it prints to standard output.
func (c Client) Kubectl(t T, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// KubectlApply applies a manifest.
func (c Client) KubectlApply(t T, yaml string) string {
	t.Helper()
	out, err := c.TryKubectl(t.Context(), yaml, "apply", "-f", "-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// TryKubectl is Kubectl for calls that may fail. The error contains what kubectl said. ctx
// and five minutes bound it. stdin is kubectl's standard input.
func (c Client) TryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := c.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s",
			strings.Join(args, " "), err, out.String(), strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// Command prepares a kubectl that the caller runs, such as one that watches.
func (c Client) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(c.dir, "kubecache"), "KUBERC=off")
	return cmd
}

// Script runs a script that calls kubectl, such as one of deploy's, as this identity. It
// returns all that the script prints. The error contains that, too.
func (c Client) Script(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(c.Command(ctx).Env, "KUBECONFIG="+c.Kubeconfig, "PATH="+filepath.Dir(c.kubectl)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// ServiceAccount returns a client with a token of that ServiceAccount. The token is valid
// for an hour. flags are further flags of kubectl create token, such as the object to which
// the token is bound.
func (c Client) ServiceAccount(t T, namespace, name string, flags ...string) Client {
	t.Helper()
	token := c.Kubectl(t, append([]string{"create", "token", "--duration=1h", "-n", namespace, name}, flags...)...)
	var config struct {
		Clusters []struct {
			Cluster map[string]any `json:"cluster"`
		} `json:"clusters"`
	}
	view := c.Kubectl(t, "config", "view", "--raw", "--minify", "--flatten", "-o", "json")
	if err := json.Unmarshal([]byte(view), &config); err != nil || len(config.Clusters) != 1 {
		t.Fatalf("kubeconfig %s has %d clusters: %v", c.Kubeconfig, len(config.Clusters), err)
	}
	text, err := json.Marshal(newKubeconfig(config.Clusters[0].Cluster, map[string]any{"token": token}))
	if err != nil {
		t.Fatalf("kubeconfig of %s/%s: %v", namespace, name, err)
	}
	other := c
	other.Kubeconfig = filepath.Join(c.dir, "sa-"+namespace+"-"+name+".kubeconfig")
	if err := os.WriteFile(other.Kubeconfig, text, 0o600); err != nil {
		t.Fatalf("kubeconfig of %s/%s: %v", namespace, name, err)
	}
	return other
}

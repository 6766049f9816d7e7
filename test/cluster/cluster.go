package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrForeign is the error of what is only possible in a cluster of the test's own.
var ErrForeign = errors.New("not possible in a cluster that KUBECONFIG names")

// Cluster is a Kubernetes whose nodes have a libvirt. Its embedded Client is cluster-admin.
// One goroutine at a time may call its methods.
type Cluster struct {
	Client
	// Nodes are node-a and node-b, or the nodes of a foreign cluster that take pods.
	Nodes []*Node

	own *own // nil for a foreign cluster
}

// Start starts a cluster of two nodes, or uses the one that KUBECONFIG names. E2E_NODE_EXEC
// says how to run commands on the nodes of that one. It is a command in which {node} stands
// for the node's name, and a shell script is added to it as one argument. Two examples are
// "ssh root@{node}" and "docker exec -i {node} sh -c". The caller must call Close.
func Start(ctx context.Context) (*Cluster, error) {
	if config := os.Getenv("KUBECONFIG"); config != "" {
		return foreign(ctx, config)
	}
	o, err := startOwn(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Client: o.api.Client, own: o}
	for _, m := range o.machines {
		c.Nodes = append(c.Nodes, &Node{Name: m.name, machine: m})
	}
	return c, nil
}

func foreign(ctx context.Context, config string) (*Cluster, error) {
	enter := strings.Fields(os.Getenv("E2E_NODE_EXEC"))
	if len(enter) == 0 {
		return nil, errors.New(`KUBECONFIG is set, E2E_NODE_EXEC is not: how are commands run on the nodes? "ssh root@{node}"`)
	}
	kubectl, err := program("kubectl")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vmgrace-e2e-")
	if err != nil {
		return nil, fmt.Errorf("directory for kubeconfigs: %w", err)
	}
	c := &Cluster{Client: Client{Kubeconfig: config, kubectl: kubectl, dir: dir}}
	if err := c.findNodes(ctx, enter); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// findNodes sets Nodes to the nodes that take pods.
func (c *Cluster) findNodes(ctx context.Context, enter []string) error {
	out, err := c.TryKubectl(ctx, "", "get", "nodes", "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				Unschedulable bool
				Taints        []struct{ Effect string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("list of nodes: %w", err)
	}
	for _, item := range list.Items {
		free := !item.Spec.Unschedulable
		for _, taint := range item.Spec.Taints {
			free = free && taint.Effect == "PreferNoSchedule"
		}
		if free {
			c.Nodes = append(c.Nodes, &Node{Name: item.Metadata.Name, enter: enter})
		}
	}
	if len(c.Nodes) < 2 {
		return fmt.Errorf("two nodes that take pods are needed, this cluster has %d", len(c.Nodes))
	}
	return nil
}

// Own reports whether Start has started the cluster. Only then can a test stop its control
// plane.
func (c *Cluster) Own() bool { return c.own != nil }

// API returns the cluster's etcd and kube-apiserver, which the test can stop, kill and
// freeze. It returns ErrForeign for a foreign cluster.
func (c *Cluster) API() (*API, error) {
	if c.own == nil {
		return nil, fmt.Errorf("the API server: %w", ErrForeign)
	}
	return c.own.api, nil
}

// Dir returns the directory with the cluster's files, logs among them: apiserver.log,
// node-a/kubelet.log. For a foreign cluster it has no logs.
func (c *Cluster) Dir() string { return c.dir }

// Log returns the end of every log, for a message. It is empty for a foreign cluster.
func (c *Cluster) Log() string {
	if c.own == nil {
		return ""
	}
	return c.own.said()
}

// Import imports the image in an OCI archive on all nodes, under its name in the archive.
func (c *Cluster) Import(ctx context.Context, archive string) error {
	for _, n := range c.Nodes {
		if err := n.importImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// ImportImages imports images of hack/images.sh on all nodes.
func (c *Cluster) ImportImages(ctx context.Context, names ...string) error {
	for _, name := range names {
		image, err := Image(name)
		if err != nil {
			return err
		}
		if err := c.Import(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// Close kills everything in the cluster and removes its files. It leaves a foreign cluster
// as it is.
func (c *Cluster) Close() error {
	if c.own != nil {
		return c.own.close()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("kubeconfigs: %w", err)
	}
	return nil
}

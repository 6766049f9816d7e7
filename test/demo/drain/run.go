package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/objects"
)

const (
	namespace = "default"
	example   = "vm-example"
	manifest  = "deploy/examples/vm.yaml"
	soon      = 3 * time.Minute // bounds each wait, on a slow machine
)

// demo is the cluster with the VM.
type demo struct {
	*cluster.Cluster
	screen  *screen
	objects *objects.Reader
	guest   *guest
}

// run runs the demo and returns what it has seen.
func run(ctx context.Context, out *screen) (r result, err error) {
	out.say("", "starting a cluster of two nodes, with a Kubernetes of its own")
	c, err := cluster.Start(ctx)
	if err != nil {
		return r, interrupted(ctx, err)
	}
	following, stop := context.WithCancel(ctx)
	d := &demo{Cluster: c, screen: out, guest: &guest{screen: out, uptime: map[string]span{}}}
	var followers sync.WaitGroup
	defer func() {
		stop()
		followers.Wait()
		err = errors.Join(interrupted(ctx, err), c.Close())
	}()
	if d.objects, err = objects.New(c.Kubeconfig); err != nil {
		return r, err
	}
	if err := d.install(ctx); err != nil {
		return r, err
	}
	followers.Go(func() { d.watch(following) })
	if r.from, err = d.apply(ctx); err != nil {
		return r, err
	}
	return d.drain(ctx, r)
}

// interrupted returns one word in place of all that fails after Ctrl-C.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// install installs vmgrace as README.md says.
func (d *demo) install(ctx context.Context) error {
	d.screen.say("", "importing the images on both nodes")
	if err := d.ImportImages(ctx, "node-agent", "launcher-shim", "cluster-controller", example); err != nil {
		return err
	}
	d.screen.say("$", "deploy/crds/run apply")
	if _, err := d.Script(ctx, "deploy/crds/run", "apply"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-k", "deploy"},
		{"rollout", "status", "-n", "vmgrace-system", "ds/node-agent", "--timeout=120s"},
		{"rollout", "status", "-n", "vmgrace-system", "deploy/cluster-controller", "--timeout=120s"},
	} {
		d.screen.say("$", "kubectl %s", strings.Join(args, " "))
		if _, err := d.TryKubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}

// apply applies the example, and returns the node on which it runs once it can be moved.
func (d *demo) apply(ctx context.Context) (on string, err error) {
	d.screen.say("$", "kubectl apply -f %s", manifest)
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", err
	}
	if _, err := d.TryKubectl(ctx, string(text), "apply", "-f", "-"); err != nil {
		return "", err
	}
	return on, d.until(ctx, "the VM runs, and can be moved", func() bool {
		on = d.vmi("{.status.nodeName}")
		said, booted := d.guest.on(on)
		return d.vmi(`{.status.conditions[?(@.type=="LiveMigratable")].status}`) == "True" && booted && said.last-said.first >= 3
	})
}

// drain drains the VM's node.
func (d *demo) drain(ctx context.Context, r result) (result, error) {
	before, _ := d.guest.on(r.from)
	command := []string{"drain", r.from, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=150s"}
	d.screen.say("$", "kubectl %s", strings.Join(command, " "))
	begin := time.Now()
	cmd := d.Command(ctx, command...)
	out := &speaker{say: func(line string) { d.screen.say("kubectl drain", "%s", line) }}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	r.drained = time.Since(begin)
	r.exit = cmd.ProcessState.ExitCode()
	if err != nil && r.exit < 0 {
		return r, err
	}
	err = d.until(ctx, "the guest goes on", func() bool {
		r.to = d.vmi("{.status.nodeName}")
		said, ok := d.guest.on(r.to)
		return r.exit != 0 || r.to != r.from && ok && said.last-said.first >= 3
	})
	stood, _ := d.objects.Find(ctx, objects.Query{Kind: "vmim", Namespace: namespace, Path: "{.items[*].status.migrationState.downtimeMilliseconds}"})
	there, _ := d.guest.on(r.to)
	last, _ := d.guest.on(r.from)
	r.before, r.left, r.after, r.stood = before.last, last.last, there.first, stood
	r.boots, r.asked = d.guest.boots, d.guest.asked
	return r, err
}

// vmi reads from the VM's VMI, "" if that fails: it is read again.
func (d *demo) vmi(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	text, err := d.objects.Find(ctx, objects.Query{Kind: "vmi", Namespace: namespace, Name: example, Path: path})
	if err != nil {
		return ""
	}
	return text
}

func (d *demo) until(ctx context.Context, what string, is func() bool) error {
	for end := time.Now().Add(soon); !is(); pause(ctx) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(end) {
			pods, _ := d.TryKubectl(ctx, "", "get", "pods,vmi,vmim", "-A", "-o", "wide")
			return fmt.Errorf("not within %v: %s: %s\n%s", soon, what, d.vmi("{.status}"), pods)
		}
	}
	return nil
}

// watch shows what changes of the VM and its migration, and the guest's consoles, until ctx ends.
func (d *demo) watch(ctx context.Context) {
	var consoles sync.WaitGroup
	defer consoles.Wait()
	shown, followed := map[string]string{}, map[string]bool{}
	show := func(who, text string) {
		if text != "" && shown[who] != text {
			shown[who] = text
			d.screen.say(who, "%s", text)
		}
	}
	for ; ctx.Err() == nil; pause(ctx) {
		show("VMI", d.vmi("{.status.phase} {.status.nodeName}"))
		if able := d.vmi(`{.status.conditions[?(@.type=="LiveMigratable")].status}`); able != "" {
			show("LiveMigratable", strings.TrimSpace(able+" "+d.vmi(`{.status.conditions[?(@.type=="LiveMigratable")].message}`)))
		}
		phase, _ := d.objects.Find(ctx, objects.Query{Kind: "vmim", Namespace: namespace, Path: "{range .items[*]}{.status.phase} {.status.migrationState.progress.percent}{end}"})
		if name, percent, _ := strings.Cut(phase, " "); name == "Running" && percent != "" {
			phase = "Running, " + percent + " % are sent"
		}
		show("migration", strings.TrimSpace(phase))
		pods, _ := d.objects.Find(ctx, objects.Query{Kind: "pod", Namespace: namespace, Labels: "kubevirt.io=virt-launcher", Path: `{range .items[?(@.spec.nodeName)]}{.spec.nodeName} {.metadata.name}{"\n"}{end}`})
		for line := range strings.Lines(pods) {
			if f := strings.Fields(line); len(f) == 2 && !followed[f[1]] {
				followed[f[1]] = true
				d.screen.say("launcher pod", "%s on %s", f[1], f[0])
				consoles.Go(func() { d.guest.follow(ctx, d.Client, f[0], f[1]) })
			}
		}
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/node"
)

// moving is a migration of a crew's VM.
type moving struct {
	path, uid, vmi string
	phase          kubevirt.MigrationPhase
	final          bool
}

func (c *crew) migrations() (all []moving) {
	c.Helper()
	var list kubevirt.VirtualMachineInstanceMigrationList
	c.get(migrationsPath, &list)
	for i := range list.Items {
		m := &list.Items[i]
		all = append(all, moving{migrationPath(m.Namespace) + "/" + m.Name, string(m.UID), m.Spec.VMIName, m.Status.Phase, m.Final()})
	}
	return all
}

// target is a target pod.
type target struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct{ NodeName string }
}

// targets returns all target pods, also those of migrations that have ended.
func (c *crew) targets() []target {
	c.Helper()
	var list struct{ Items []target }
	c.get("/api/v1/pods?labelSelector="+kubevirt.MigrationJobLabel, &list)
	return list.Items
}

func (c *crew) get(path string, into any) {
	c.Helper()
	text, err := c.call(http.MethodGet, path, "")
	c.must(err)
	c.must(json.Unmarshal(text, into))
}

// waiting waits until n target pods wait for the scheduler.
func (c *crew) waiting(n int) (fresh []target) {
	c.Helper()
	node.Eventually(c, time.Minute, func() bool {
		fresh = nil
		for _, p := range c.targets() {
			if p.Spec.NodeName == "" {
				fresh = append(fresh, p)
			}
		}
		return len(fresh) >= n
	}, "%d target pods are made", n)
	return fresh
}

// begin plays the scheduler, kubelets and agents until n more migrations run.
func (c *crew) begin(nodes []string, n int) (begun []moving) {
	c.Helper()
	fresh := c.waiting(n)
	all := map[string]moving{}
	for _, m := range c.migrations() {
		all[m.uid] = m
	}
	for _, p := range fresh[:n] {
		path := podPath(p.Metadata.Namespace, p.Metadata.Name)
		c.bound++
		c.must(c.ask(http.MethodPost, path+"/binding", fmt.Sprintf(`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q},"target":{"kind":"Node","name":%q}}`,
			p.Metadata.Name, nodes[len(nodes)-c.bound])))
		c.must(c.ask(http.MethodPatch, path+"/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
		m := all[p.Metadata.Labels[kubevirt.MigrationJobLabel]]
		c.becomes(m, kubevirt.MigrationScheduled)
		c.must(c.ask(http.MethodPatch, m.path+"/status", fmt.Sprintf(`{"status":{"phase":%q,"migrationState":{"startTimestamp":%q}}}`,
			kubevirt.MigrationRunning, time.Now().UTC().Format(time.RFC3339))))
		begun = append(begun, m)
	}
	return begun
}

func (c *crew) becomes(m moving, phase kubevirt.MigrationPhase) {
	c.Helper()
	node.Eventually(c, time.Minute, func() bool {
		var now kubevirt.VirtualMachineInstanceMigration
		c.get(m.path, &now)
		return now.Status.Phase == phase
	}, "%s becomes %s", m.path, phase)
}

// report plays the agents of a migration whose guest has arrived.
func (c *crew) report(m moving) {
	c.Helper()
	c.must(c.ask(http.MethodPatch, m.path+"/status", fmt.Sprintf(`{"status":{"migrationState":{"sourceState":%q,"targetState":%q}}}`, kubevirt.SourceGone, kubevirt.TargetRunning)))
}

// arrive ends a migration, and the VM's former pod.
func (c *crew) arrive(m moving) {
	c.Helper()
	c.report(m)
	c.becomes(m, kubevirt.MigrationSucceeded)
	c.must(c.ask(http.MethodDelete, podPath(c.space(m.vmi), launcherOf(m.vmi))+"?gracePeriodSeconds=0", ""))
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// drain is the number of evictions in a round, and their rate per second. At the rate of the last no
// server has a queue. That of the second has no target: two cores have something left at it.
type drain struct{ evictions, rate int }

func drains() []drain { return []drain{{300, 100}, {200, half}, {100, 10}} }

const half = 50

// evictions measures row k: a cluster-controller in a large cluster of objects on a real API server.
// Its floors are the same writes by the bench, while no controller runs, and the API server's own
// answer by a budget after a webhook that does nothing.
func evictions(b *bench) []figure {
	c := b.crew([]string{crewNode}, b.vmis)
	each := figure{row: "k", what: fmt.Sprintf("%d VMIs: requests to the API server for each evacuation, by webhook and controllers", b.vmis), target: "≤ 4",
		unit: func(v float64) string { return fmt.Sprintf("%.1f", v) }}
	var answers []drained
	for _, d := range drains() {
		answers = append(answers, newDrained(d))
	}
	p, _ := c.start()
	c.rest()
	c.bystander()
	c.idleWebhook()
	fresh := c.names
	for range b.rounds {
		for n, d := range drains() {
			if len(fresh) < d.evictions {
				b.Fatalf("row k has too few VMIs for %d rounds: --vmis or --rounds", b.rounds)
			}
			vms := fresh[:d.evictions]
			fresh = fresh[d.evictions:]
			each.ours = append(each.ours, answers[n].take(c, vms, d.rate)/float64(len(vms)))
			c.stop(p)
			answers[n].takeFloor(c, vms, d.rate)
			p, _ = c.start()
			c.rest()
		}
	}
	figures := []figure{each}
	for _, a := range answers {
		figures = append(figures, a.marked, a.median, a.left, a.moves)
	}
	return figures
}

// drained has the figures for the evictions at one rate.
type drained struct{ marked, median, left, moves figure }

func newDrained(d drain) drained {
	line := func(what, target string) figure {
		if d.rate == half {
			target = ""
		}
		return figure{row: "k", what: fmt.Sprintf("%s, %d a second: p99", what, d.rate), target: target, unit: seconds}
	}
	median := figure{row: "k", what: fmt.Sprintf("the same eviction that marks, %d a second: median", d.rate), unit: seconds}
	soon := "≤ 300 ms"
	if d.rate > 10 {
		soon = "≤ 2 × floor"
	}
	return drained{
		marked: line("eviction that marks (floor: one patch by nobody)", "≤ 1.5 × floor"),
		median: median,
		left:   line("eviction of a marked VM, left to its budget (floor: behind a webhook that does nothing)", "≤ 1.3 × floor"),
		moves:  line("eviction sent → migration object seen (floor: two writes by nobody)", soon),
	}
}

// take evicts each of these VMs twice. It returns the number of requests that the marks and
// the migrations took.
func (d *drained) take(c *crew, vms []string, rate int) (requests float64) {
	c.Helper()
	before := c.requests()
	seen := c.watch(len(vms))
	sent, answered := c.evict(vms, rate)
	d.marked.ours = append(d.marked.ours, quantile(answered, 0.99))
	d.median.ours = append(d.median.ours, quantile(answered, 0.5))
	d.moves.ours = append(d.moves.ours, quantile(seen(sent), 0.99))
	c.rest()
	requests = c.requests() - before
	_, answered = c.evict(vms, rate)
	d.left.ours = append(d.left.ours, quantile(answered, 0.99))
	_, answered = c.evict(slices.Repeat([]string{bystander}, len(vms)), rate)
	d.left.floor = append(d.left.floor, quantile(answered, 0.99))
	return requests
}

// takeFloor writes what the evictions of these VMs have written, while no controller runs: one patch,
// then a patch and a migration.
func (d *drained) takeFloor(c *crew, vms []string, rate int) {
	c.Helper()
	_, took := c.paced(vms, rate, func(name string) error { return c.patch(name, "one write") })
	d.marked.floor = append(d.marked.floor, quantile(took, 0.99))
	d.median.floor = append(d.median.floor, quantile(took, 0.5))
	seen := c.watch(len(vms))
	sent, _ := c.paced(vms, rate, func(name string) error {
		if err := c.patch(name, "two writes"); err != nil {
			return err
		}
		return c.ask(http.MethodPost, migrationPath(c.space(name)), fmt.Sprintf(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstanceMigration",
			"metadata":{"name":"floor-%s"},"spec":{"vmiName":%q}}`, name, name))
	})
	d.moves.floor = append(d.moves.floor, quantile(seen(sent), 0.99))
	for _, name := range vms {
		c.must(c.ask(http.MethodDelete, migrationPath(c.space(name))+"/floor-"+name, ""))
	}
}

// patch writes to a marked VMI as much as a mark does. No controller removes such a mark later.
func (c *crew) patch(name, cause string) error {
	return c.ask(http.MethodPatch, vmiPath(c.space(name), name)+"/status", fmt.Sprintf(`{"status":{"evacuationNodeName":%q,"vmgraceMark":{"cause":%q}}}`, crewNode, cause))
}

// bystander is a pod with a budget that belongs to no VM, in a namespace with as many budgets as theirs.
const bystander = "bystander"

func (c *crew) bystander() {
	c.Helper()
	c.api.KubectlApply(c, `
apiVersion: v1
kind: Pod
metadata: {name: bystander, namespace: `+c.spaces[0]+`, labels: {app: bystander}}
spec: {nodeName: `+crewNode+`, containers: [{name: c, image: none}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: bystander, namespace: `+c.spaces[0]+`}
spec: {minAvailable: 1, selector: {matchLabels: {app: bystander}}}
`)
	c.must(c.ask(http.MethodPatch, podPath(c.spaces[0], bystander)+"/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
}

// evict evicts the launcher pods of these VMs at the rate. It returns when each eviction
// was sent and how long its answer took. The answer must be a 429.
func (c *crew) evict(vms []string, rate int) (sent map[string]time.Time, answered []float64) {
	c.Helper()
	return c.paced(vms, rate, func(name string) error {
		if name == bystander {
			return c.refused(c.spaces[0], name)
		}
		return c.refused(c.space(name), launcherOf(name))
	})
}

// paced calls do for each VM at the rate. It returns when each call began and how long it
// took.
func (c *crew) paced(vms []string, rate int, do func(name string) error) (sent map[string]time.Time, took []float64) {
	c.Helper()
	sent, took = map[string]time.Time{}, make([]float64, len(vms))
	errs := make([]error, len(vms))
	var group sync.WaitGroup
	begin := time.Now()
	for n, name := range vms {
		c.pause(time.Until(begin.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		at := time.Now()
		sent[name] = at
		group.Go(func() {
			errs[n] = do(name)
			took[n] = time.Since(at).Seconds()
		})
	}
	group.Wait()
	for _, err := range errs {
		c.must(err)
	}
	return sent, took
}

func (c *crew) refused(namespace, pod string) error {
	err := c.ask(http.MethodPost, podPath(namespace, pod)+"/eviction", fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, namespace))
	switch {
	case err == nil:
		return fmt.Errorf("%s was evicted", pod)
	case strings.Contains(err.Error(), "429"):
		return nil
	}
	return err
}

func migrationPath(namespace string) string {
	return "/apis/kubevirt.io/v1/namespaces/" + namespace + "/virtualmachineinstancemigrations"
}

const migrationsPath = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations"

// watch notes when each of n migrations is first seen. The function that it returns waits
// for them and returns how long each took.
func (c *crew) watch(n int) func(sent map[string]time.Time) []float64 {
	c.Helper()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	c.must(json.Unmarshal([]byte(c.api.Kubectl(c, "get", "--raw", migrationsPath+"?limit=1")), &list))
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api.URL+migrationsPath+"?watch=1&resourceVersion="+list.Metadata.ResourceVersion, http.NoBody)
	c.must(err)
	client := c.api.HTTP()
	client.Timeout = 0
	resp, err := client.Do(r) //nolint:bodyclose // below, with the watch
	c.must(err)
	seen, done := map[string]time.Time{}, make(chan error, 1)
	go func() {
		done <- collect(resp.Body, n, seen)
		cancel()
		_ = resp.Body.Close()
		client.CloseIdleConnections()
	}()
	return func(sent map[string]time.Time) (took []float64) {
		c.must(<-done)
		for name, at := range seen {
			took = append(took, at.Sub(sent[name]).Seconds())
		}
		return took
	}
}

func collect(body io.Reader, n int, seen map[string]time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for len(seen) < n && lines.Scan() {
		var e struct {
			Type   string
			Object struct {
				Spec struct {
					VMIName string `json:"vmiName"`
				} `json:"spec"`
			} `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if e.Type == "ADDED" {
			seen[e.Object.Spec.VMIName] = time.Now()
		}
	}
	if len(seen) < n {
		return fmt.Errorf("of %d migrations %d were seen: %w", n, len(seen), lines.Err())
	}
	return nil
}

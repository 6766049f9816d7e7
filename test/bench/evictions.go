package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A drain's evictions come at this rate, and so many are in each round.
const (
	evictionRate = 100
	evictionsOf  = 300
)

// evictions is row k: cluster-controller in a large cluster of objects on a real
// API server. The floor of an eviction is the API server's own answer by a
// budget, for a pod about which the webhook is never asked.
func evictions(b *bench) []figure {
	c := b.crew(b.vmis)
	crowd := fmt.Sprintf("%d VMIs with launcher pods: ", b.vmis)
	line := func(what, target string, u unit) figure { return figure{row: "k", what: what, target: target, unit: u} }
	first := line(crowd+"start → all have their budgets, the first time", "", seconds)
	ready := line(crowd+"start → ready", "≤ 20 s", seconds)
	rss := line(crowd+"RSS at rest", "≤ 150 MiB", mebibytes)
	idle := line(crowd+"requests to the API server a second at rest, without the Lease's", "0", perSecond)
	marked := line("eviction that marks, 100 a second: p99", "≤ 25 ms", seconds)
	left := line("eviction of a marked VM, left to its budget, 100 a second: p99", "≤ 10 ms", seconds)
	moves := line("eviction sent → migration object seen, 100 a second: p99", "≤ 200 ms", seconds)
	each := line("requests to the API server for each evacuation, by webhook and controllers", "", func(v float64) string { return fmt.Sprintf("%.1f", v) })

	begin := time.Now()
	p, _ := c.start()
	c.rest()
	first.ours = []float64{time.Since(begin).Seconds()}
	c.bystander()
	for round := range min(b.rounds, len(c.names)/evictionsOf) {
		c.stop(p)
		var took float64
		p, took = c.start()
		ready.ours = append(ready.ours, took)
		c.rest()
		rss.ours = append(rss.ours, b.memory(p))

		vms := c.names[round*evictionsOf : (round+1)*evictionsOf]
		before, seen := c.requests(), c.watch(len(vms))
		sent, answered := c.evict(vms)
		marked.ours = append(marked.ours, quantile(answered, 0.99))
		moves.ours = append(moves.ours, quantile(seen(sent), 0.99))
		c.rest()
		each.ours = append(each.ours, (c.requests()-before)/float64(len(vms)))
		_, answered = c.evict(vms)
		left.ours = append(left.ours, quantile(answered, 0.99))
		var others []string
		for range vms {
			others = append(others, bystander)
		}
		_, answered = c.evict(others)
		marked.floor, left.floor = append(marked.floor, quantile(answered, 0.99)), append(left.floor, quantile(answered, 0.99))
	}
	c.rest()
	asked, from := c.requests(), time.Now()
	b.pause(b.idle)
	idle.ours = []float64{(c.requests() - asked) / time.Since(from).Seconds()}
	return []figure{first, ready, rss, idle, marked, left, moves, each}
}

// bystander is a pod of nobody's VM, with a budget.
const bystander = "bystander"

func (c *crew) bystander() {
	c.Helper()
	c.api.KubectlApply(c, `
apiVersion: v1
kind: Pod
metadata: {name: bystander, namespace: vmgrace-bench, labels: {app: bystander}}
spec: {nodeName: `+crewNode+`, containers: [{name: c, image: none}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: bystander, namespace: vmgrace-bench}
spec: {minAvailable: 1, selector: {matchLabels: {app: bystander}}}
`)
	c.must(c.ask(http.MethodPatch, podsPath+"/bystander/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
}

// evict evicts the launcher pods of these VMs at the rate, and returns when each
// was asked for and how long the answer took: always a 429.
func (c *crew) evict(vms []string) (sent map[string]time.Time, answered []float64) {
	c.Helper()
	sent, answered = map[string]time.Time{}, make([]float64, len(vms))
	errs := make([]error, len(vms))
	var group sync.WaitGroup
	begin := time.Now()
	for n, name := range vms {
		c.pause(time.Until(begin.Add(time.Duration(n) * time.Second / evictionRate)))
		pod := launcherOf(name)
		if name == bystander {
			pod = name
		}
		at := time.Now()
		sent[name] = at
		group.Go(func() {
			errs[n] = c.refused(pod)
			answered[n] = time.Since(at).Seconds()
		})
	}
	group.Wait()
	for _, err := range errs {
		c.must(err)
	}
	return sent, answered
}

func (c *crew) refused(pod string) error {
	err := c.ask(http.MethodPost, podsPath+"/"+pod+"/eviction", fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":"vmgrace-bench"}}`, pod))
	switch {
	case err == nil:
		return fmt.Errorf("%s was evicted", pod)
	case strings.Contains(err.Error(), "429"):
		return nil
	}
	return err
}

const migrationsPath = "/apis/kubevirt.io/v1/namespaces/vmgrace-bench/virtualmachineinstancemigrations"

// watch notes when so many migrations are first seen. The function that it
// returns waits for them, and returns how long each took.
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

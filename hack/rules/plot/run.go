package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/vmgrace/vmgrace/hack/rules/memory"
)

// recording is every series of a run. first and last are in milliseconds.
type recording struct {
	first, last int64
	series      map[string]*series
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func (r *recording) put(l labels.Labels, at int64, value float64) {
	s := r.series[l.String()]
	if s == nil {
		s = &series{labels: l}
		r.series[l.String()] = s
	}
	s.samples = append(s.samples, memory.Sample(at, value))
}

func (r *recording) queryable() storage.Queryable {
	var all []storage.Series
	for _, s := range r.series {
		all = append(all, storage.NewListSeries(s.labels, s.samples))
	}
	return memory.Queryable(all)
}

// read reads the scrapes of a run.
func read(dir string) (*recording, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*[0-9]"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no scrape in %s", dir), err)
	}
	slices.Sort(files)
	r := &recording{series: map[string]*series{}}
	for _, file := range files {
		at, err := strconv.ParseInt(filepath.Base(file), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s is not named by a time: %w", file, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := r.add(text, at*1000); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return r, nil
}

// add adds a scrape at a time in milliseconds.
func (r *recording) add(text []byte, at int64) error {
	if r.first == 0 {
		r.first = at
	}
	r.last = at
	for parse := textparse.NewPromParser(text, labels.NewSymbolTable(), false); ; {
		kind, err := parse.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if kind == textparse.EntrySeries {
			var l labels.Labels
			parse.Labels(&l)
			_, _, value := parse.Series()
			r.put(labels.NewBuilder(l).Set("job", "vmgrace").Set("instance", "node-1").Labels(), at, value)
		}
	}
}

// chart evaluates a panel's queries at each second of the run.
func (r *recording) chart(p panel) (chart, error) {
	c := chart{title: p.Title, unit: p.FieldConfig.Defaults.Unit}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Second, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close() //nolint:errcheck // its queries have ended
	for _, target := range p.Targets {
		expr := strings.NewReplacer("$__rate_interval", "4s", "$node", ".*").Replace(target.Expr)
		query, err := engine.NewRangeQuery(context.Background(), r.queryable(), nil, expr, time.UnixMilli(r.first), time.UnixMilli(r.last), time.Second)
		if err != nil {
			return c, err
		}
		defer query.Close()
		result, err := query.Exec(context.Background()).Matrix()
		if err != nil {
			return c, err
		}
		for _, s := range result {
			name := target.LegendFormat
			s.Metric.Range(func(l labels.Label) { name = strings.ReplaceAll(name, "{{"+l.Name+"}}", l.Value) })
			c.add(name, r.first, s.Floats)
		}
	}
	return c, nil
}

package main

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
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
	s.samples = append(s.samples, sample{at: at, value: value})
}

func (r *recording) queryable() storage.Queryable {
	find := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := &set{}
		for _, s := range r.series {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
				found.series = append(found.series, storage.NewListSeries(s.labels, s.samples))
			}
		}
		return found
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: find}}
}

// set goes through series.
type set struct {
	series []storage.Series
	at     storage.Series
}

func (s *set) Next() bool {
	if len(s.series) == 0 {
		return false
	}
	s.at, s.series = s.series[0], s.series[1:]
	return true
}
func (s *set) At() storage.Series                { return s.at }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// sample is a number at a time in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) ST() int64                     { return 0 }
func (s sample) T() int64                      { return s.at }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

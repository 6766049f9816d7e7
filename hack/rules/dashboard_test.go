package rules

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	query "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const dashboardFile = "../../deploy/monitoring/dashboard.json"

// panel is what the tests look at of a panel or of a row.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
}

// dashboard returns the text of the dashboard, its rows and its panels.
func dashboard(t *testing.T) (text []byte, rows, panels []panel) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Panels []panel }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Panels {
		if p.Type == "row" {
			rows = append(rows, p)
		} else {
			panels = append(panels, p)
		}
	}
	return text, rows, panels
}

// Grafana's own types refuse fields that they do not have; of queries only with the type
// of the data source in each.
func TestTheDashboardIsOneOfGrafanas(t *testing.T) {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(query.VariantConfig())
	text, _, _ := dashboard(t)
	var d grafana.Dashboard                                                  //nolint:staticcheck // what every Grafana imports; its next schema is an API object
	if err := d.UnmarshalJSONStrict(text); err != nil && err.Error() != "" { // it never returns nil
		t.Error(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if newest := grafana.NewDashboard().SchemaVersion; d.SchemaVersion != newest {
		t.Errorf("schema version %d, Grafana's is %d", d.SchemaVersion, newest)
	}
}

func TestEachPanelShowsWhatTheProgramsExport(t *testing.T) {
	series := recorded(t)
	_, _, panels := dashboard(t)
	for _, p := range panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s has no query", p.Title)
		}
		for _, target := range p.Targets {
			t.Run(p.Title+"/"+target.RefID, func(t *testing.T) {
				if target.Datasource.UID != "${datasource}" {
					t.Errorf("data source %q", target.Datasource.UID)
				}
				expr := strings.NewReplacer("$__rate_interval", "4m0s", "$node", "node-1|node-2").Replace(target.Expr)
				checkSelectors(t, expr, series)
				shown := false
				for _, sample := range evaluate(t, expr, series) {
					shown = shown || !math.IsNaN(sample.F)
					for _, m := range regexp.MustCompile(`\{\{(.*?)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
						if !sample.Metric.Has(m[1]) {
							t.Errorf("its legend has %s, the result %v has not", m[1], sample.Metric)
						}
					}
				}
				if !shown {
					t.Errorf("nothing to show: %s", expr)
				}
			})
		}
	}
}

func TestEachAlertAsksForWhatTheProgramsExport(t *testing.T) {
	series := recorded(t)
	for name, rule := range alerts(t) {
		t.Run(name, func(t *testing.T) { checkSelectors(t, rule.Expr, series) })
	}
}

// The series of the alerts' cases are ones that the programs have.
func TestTheCasesAreOfWhatTheProgramsExport(t *testing.T) {
	series := recorded(t)
	for _, c := range cases {
		for _, text := range c.series {
			name, _, _ := strings.Cut(text, " ")
			expr, err := parser.NewParser(parser.Options{}).ParseExpr(name)
			if err != nil {
				t.Fatal(err)
			}
			selector, ok := expr.(*parser.VectorSelector)
			if !ok {
				t.Fatalf("%s is no series", name)
			}
			var matchers []*labels.Matcher
			for _, m := range selector.LabelMatchers { // of another target, or of up
				if m.Name != "instance" && m.Name != "job" {
					matchers = append(matchers, m)
				}
			}
			selector.LabelMatchers = matchers
			if len(evaluate(t, selector.String(), series)) == 0 {
				t.Errorf("%s/%s: no program exports %s", c.alert, c.name, name)
			}
		}
	}
}

// checkSelectors checks that each selector of an expression finds something in the
// series, and that these have the labels that it matches and groups by.
func checkSelectors(t *testing.T, expr string, series []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	found := 0
	parser.Inspect(parsed, func(n parser.Node, path []parser.Node) error {
		selector, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		var want []string
		for _, m := range selector.LabelMatchers {
			want = append(want, m.Name)
		}
		for _, above := range path {
			if group, ok := above.(*parser.AggregateExpr); ok && !group.Without {
				want = append(want, group.Grouping...)
			}
		}
		now := parser.VectorSelector{Name: selector.Name, LabelMatchers: selector.LabelMatchers}
		samples := evaluate(t, now.String(), series)
		if found += len(samples); len(samples) == 0 {
			t.Errorf("no program exports %s", now.String())
		}
		for _, sample := range samples {
			for _, label := range want {
				if !sample.Metric.Has(label) {
					t.Errorf("%s has no label %s: %s", sample.Metric, label, expr)
				}
			}
		}
		return nil
	})
	if found == 0 {
		t.Errorf("it asks for nothing: %s", expr)
	}
}

func TestEachPanelSaysWhatItMeansAndWhatToDo(t *testing.T) {
	_, rows, panels := dashboard(t)
	if len(rows) != 5 || len(panels) < 15 || len(panels) > 20 {
		t.Errorf("%d panels in %d rows", len(panels), len(rows))
	}
	titles := map[string]bool{}
	for _, p := range panels {
		if p.Title == "" || titles[p.Title] || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("title %q, unit %q", p.Title, p.FieldConfig.Defaults.Unit)
		}
		titles[p.Title] = true
		links := regexp.MustCompile(`\[[^]]+\]\(https://github\.com/vmgrace/vmgrace/blob/main/(docs/[a-z-]+\.md)#([^)]+)\)`).FindAllStringSubmatch(p.Description, -1)
		words, _, _ := strings.Cut(p.Description, " [")
		if len(links) != strings.Count(p.Description, "](") || len(links) == 0 || strings.Contains(p.Description, "\n") || len(words) < 30 || len(words) > 160 {
			t.Errorf("%s: not one line with links into docs: %s", p.Title, p.Description)
		}
		for _, link := range links {
			if !anchors(t, link[1])[link[2]] {
				t.Errorf("%s: %s has no %s", p.Title, link[1], link[2])
			}
		}
	}
}

// anchors are those that GitHub makes of a document's headings.
func anchors(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		words := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(words, " ", "-")] = true
	}
	return all
}

func TestNoTwoPanelsOverlap(t *testing.T) {
	_, rows, panels := dashboard(t)
	taken, ids := map[[2]int]string{}, map[int]string{}
	for _, p := range append(rows, panels...) {
		if other, ok := ids[p.ID]; ok || p.ID == 0 {
			t.Errorf("%s and %s have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		at := p.GridPos
		if at.W < 1 || at.H < 1 || at.X < 0 || at.X+at.W > 24 {
			t.Errorf("%s is at %+v", p.Title, at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("%s and %s overlap", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

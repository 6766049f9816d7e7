// Command plot draws the dashboard's panels over a recorded run: plot DIR DASHBOARD PICTURE.
// DIR holds a program's /metrics, one file a scrape, named by its Unix time (record.sh).
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
)

// panel is what is drawn of a panel.
type panel struct {
	Type, Title string
	Targets     []struct{ Expr, LegendFormat string }
	FieldConfig struct{ Defaults struct{ Unit string } }
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: plot DIR DASHBOARD PICTURE")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(dir, dashboard, file string) error {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		return err
	}
	var all struct{ Panels []panel }
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", dashboard, err)
	}
	data, err := read(dir)
	if err != nil {
		return err
	}
	var drawn []chart
	for _, p := range all.Panels {
		c, err := data.chart(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Title, err)
		}
		if len(c.lines) > 0 {
			drawn = append(drawn, c)
		}
	}
	return picture(drawn, file)
}

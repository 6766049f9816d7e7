package main

import (
	"math"
	"os"

	"github.com/prometheus/prometheus/promql"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// chart is a panel with data.
type chart struct {
	title, unit string
	lines       []line
}

type line struct {
	name   string
	points plotter.XYs
}

// add adds the numbers of a result, over seconds since first, if it has any.
func (c *chart) add(name string, first int64, floats []promql.FPoint) {
	var points plotter.XYs
	for _, f := range floats {
		if !math.IsNaN(f.F) && !math.IsInf(f.F, 0) {
			points = append(points, plotter.XY{X: float64(f.T-first) / 1000, Y: f.F})
		}
	}
	if len(points) > 0 {
		c.lines = append(c.lines, line{name: name, points: points})
	}
}

// columns is how many panels a row has.
const columns = 3

// picture draws the charts, and writes them as a PNG file.
func picture(charts []chart, file string) error {
	rows := (len(charts) + columns - 1) / columns
	img := vgimg.New(columns*11*vg.Centimeter, vg.Length(rows)*6*vg.Centimeter)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: 4 * vg.Millimeter, PadY: 4 * vg.Millimeter, PadRight: 4 * vg.Millimeter}
	for i, c := range charts {
		p := plot.New()
		p.Title.Text, p.X.Label.Text = c.title, "s"
		if c.unit != "short" { // Grafana's word for a number
			p.Y.Label.Text = c.unit
		}
		p.Y.Min, p.Legend.Top = 0, true
		for j, l := range c.lines {
			drawn, err := plotter.NewLine(l.points)
			if err != nil {
				return err
			}
			drawn.Color, drawn.Width = plotutil.Color(j), vg.Points(1.5)
			p.Add(drawn)
			p.Legend.Add(l.name, drawn)
		}
		if p.Y.Max == 0 {
			p.Y.Max = 1
		}
		p.X.Min, p.Y.Max = 0, p.Y.Max*1.7 // room for the legend
		p.Draw(tiles.At(draw.New(img), i%columns, i/columns))
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

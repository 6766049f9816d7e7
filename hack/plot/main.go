// Command plot draws docs/lab/performance.svg from the figures of make bench:
// how the cost of a VM grows with their number. A file name that ends in .png
// makes it a PNG.
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: plot FIGURES.json PICTURE.svg")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(figures, picture string) error {
	text, err := os.ReadFile(figures)
	if err != nil {
		return err
	}
	var sizes []size
	if err := json.Unmarshal(text, &sizes); err != nil {
		return fmt.Errorf("%s: %w", figures, err)
	}
	if len(sizes) == 0 {
		return fmt.Errorf("%s: no figures", figures)
	}
	out, err := os.Create(picture)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := paint(out, filepath.Ext(picture)[1:], sizes); err != nil {
		return fmt.Errorf("%s: %w", picture, err)
	}
	return out.Close()
}

// size is what the bench measured with a number of VMs, in seconds.
type size struct {
	VMs      int     `json:"vms"`
	P50      float64 `json:"overshootP50"`
	P99      float64 `json:"overshootP99"`
	FloorP50 float64 `json:"floorP50"`
	FloorP99 float64 `json:"floorP99"`
	CPU      float64 `json:"cpuPerVM"`
}

// The colours can be told apart by the colour-blind, the dashes by everybody.
var (
	ours   = color.RGBA{R: 0x00, G: 0x5a, B: 0xb5, A: 0xff}
	bare   = color.RGBA{R: 0xdc, G: 0x62, B: 0x20, A: 0xff}
	limit  = color.RGBA{R: 0x80, G: 0x80, B: 0x80, A: 0xff}
	dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	dots   = []vg.Length{vg.Points(1), vg.Points(3)}
)

// line is one of a panel, in seconds.
type line struct {
	name   string
	value  func(size) float64
	color  color.Color
	dashes []vg.Length
}

func overshoot(sizes []size) (*plot.Plot, error) {
	return panel("From a VM's deadline to its SIGTERM", "ms after the deadline", sizes,
		line{"vmgrace, p99", func(s size) float64 { return s.P99 }, ours, nil},
		line{"vmgrace, p50", func(s size) float64 { return s.P50 }, ours, dashes},
		line{"floor, p99", func(s size) float64 { return s.FloorP99 }, bare, nil},
		line{"floor, p50", func(s size) float64 { return s.FloorP50 }, bare, dashes},
		line{"target of p99: 5 ms", func(size) float64 { return 0.005 }, limit, dots},
	)
}

func cpu(sizes []size) (*plot.Plot, error) {
	return panel("CPU time that one VM's shutdown takes", "ms of CPU per VM", sizes,
		line{"vmgrace", func(s size) float64 { return s.CPU }, ours, nil},
		line{fmt.Sprintf("target: 1.3 × that of %d VMs", sizes[0].VMs), func(size) float64 { return 1.3 * sizes[0].CPU }, limit, dots},
	)
}

func panel(title, unit string, sizes []size, lines ...line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Title.Padding = title, vg.Points(10)
	p.X.Label.Text, p.Y.Label.Text = "number of VMs (logarithmic)", unit
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(func(float64, float64) []plot.Tick {
		var ticks []plot.Tick
		for _, s := range sizes {
			ticks = append(ticks, plot.Tick{Value: float64(s.VMs), Label: strconv.Itoa(s.VMs)})
		}
		return ticks
	})
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{Y: 0xe4}, color.Gray{Y: 0xe4}
	p.Add(grid)
	highest := 0.0
	for _, l := range lines {
		var xys plotter.XYs
		for _, s := range sizes {
			xys = append(xys, plotter.XY{X: float64(s.VMs), Y: l.value(s) * 1e3})
			highest = max(highest, l.value(s)*1e3)
		}
		curve, marks, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		curve.Color, curve.Dashes, curve.Width = l.color, l.dashes, vg.Points(1.5)
		marks.Color, marks.Shape, marks.Radius = l.color, draw.CircleGlyph{}, vg.Points(2)
		p.Add(curve)
		if l.color == limit {
			p.Legend.Add(l.name, curve)
			continue
		}
		p.Add(marks)
		p.Legend.Add(l.name, curve, marks)
	}
	// From zero, and with room for the legend: what is flat must look flat.
	p.Y.Min, p.Y.Max = 0, highest*1.75
	p.Legend.Top, p.Legend.Padding, p.Legend.TextStyle.Font.Size = true, vg.Points(2), vg.Points(10)
	return p, nil
}

// paint draws both panels side by side, in a format that the library knows by
// the ending of its files.
func paint(out *os.File, format string, sizes []size) error {
	sizes = slices.SortedFunc(slices.Values(sizes), func(a, b size) int { return a.VMs - b.VMs })
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	left, err := overshoot(sizes)
	if err != nil {
		return err
	}
	right, err := cpu(sizes)
	if err != nil {
		return err
	}
	canvas, err := draw.NewFormattedCanvas(26*vg.Centimeter, 10*vg.Centimeter, format)
	if err != nil {
		return err
	}
	margin := vg.Points(12)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Points(24), PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin}
	row := []*plot.Plot{left, right}
	for i, area := range plot.Align([][]*plot.Plot{row}, tiles, draw.New(canvas))[0] {
		row[i].Draw(area)
	}
	_, err = canvas.WriteTo(out)
	return err
}

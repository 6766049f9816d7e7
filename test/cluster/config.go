package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"
)

// The nodes' configuration and the programs of the keepers.
//
//go:embed config
var configs embed.FS

// script is a file of config.
func script(name string) (string, error) {
	text, err := configs.ReadFile("config/" + name)
	if err != nil {
		return "", fmt.Errorf("configuration: %w", err)
	}
	return string(text), nil
}

// configure writes a file of config, filled in, to a path in the home.
func (h *home) configure(path, name string, values any) (string, error) {
	tmpl, err := template.ParseFS(configs, "config/"+name)
	if err != nil {
		return "", fmt.Errorf("configuration: %w", err)
	}
	var b bytes.Buffer
	if err := tmpl.Execute(&b, values); err != nil {
		return "", fmt.Errorf("configuration: %w", err)
	}
	return h.write(path, b.Bytes())
}

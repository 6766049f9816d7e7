package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"
)

// configs are the nodes' configuration and the keepers' programs.
//
//go:embed config
var configs embed.FS

// script returns the text of a file of config.
func script(name string) (string, error) {
	text, err := configs.ReadFile("config/" + name)
	if err != nil {
		return "", fmt.Errorf("configuration: %w", err)
	}
	return string(text), nil
}

// configure fills in a file of config and writes it to a path in the home.
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

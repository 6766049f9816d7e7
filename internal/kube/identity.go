package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/vmgrace/vmgrace/pkg/migration"
)

const (
	// signingPoll is how often an answer to a request is looked for, signingTimeout
	// for how long.
	signingPoll    = 500 * time.Millisecond
	signingTimeout = 30 * time.Second
	// certificateLife is what is asked for.
	certificateLife = 24 * time.Hour
)

// Sign has a certificate signed for this node: the PEM of a certificate request in,
// that of the certificate out.
func (m *Migrations) Sign(ctx context.Context, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{
		"apiVersion": signingRequests().version().String(), "kind": signingRequests().kind,
		"metadata": map[string]any{"generateName": "vmgrace-migration-" + cut(m.source.node, maxLabel) + "-"},
		"spec": map[string]any{
			"request": request, "signerName": migration.SignerName, "expirationSeconds": int(certificateLife.Seconds()),
			"usages": []string{"digital signature", "client auth", "server auth"},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	client := m.source.client.Load()
	a, err := ask(ctx, signingRequests().of(client.Post()).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body))
	if err != nil {
		return nil, err
	}
	var made object
	if a.code != http.StatusCreated || json.Unmarshal(a.body, &made) != nil {
		return nil, fmt.Errorf("ask for a certificate: the API server answers %d: %.200s", a.code, a.body)
	}
	for {
		a, err := ask(ctx, signingRequests().of(client.Get()).Name(made.Name))
		if err != nil {
			return nil, err
		}
		if cert, err := signed(a); cert != nil || err != nil {
			return cert, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("request %s was not signed: is the cluster-controller running?: %w", made.Name, ctx.Err())
		case <-time.After(signingPoll):
		}
	}
}

// signed is the certificate, nil while there is none.
func signed(a answer) ([]byte, error) {
	var o object
	if a.code != http.StatusOK || json.Unmarshal(a.body, &o) != nil {
		return nil, fmt.Errorf("look for a certificate: the API server answers %d: %.200s", a.code, a.body)
	}
	var status struct {
		Certificate []byte
		Conditions  []struct{ Type, Message string }
	}
	if len(o.Status) > 0 && json.Unmarshal(o.Status, &status) != nil {
		return nil, errNotAPIServer
	}
	for _, c := range status.Conditions {
		if c.Type == "Denied" || c.Type == "Failed" {
			return nil, fmt.Errorf("the request for a certificate is %s: %.200s", c.Type, c.Message)
		}
	}
	return status.Certificate, nil
}

// Roots is the PEM of those who sign for nodes, from the controller's ConfigMap.
func (m *Migrations) Roots(ctx context.Context, namespace string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	a, err := ask(ctx, resource{plural: "configmaps"}.of(m.source.client.Load().Get()).Namespace(namespace).Name(migration.CAName))
	if err != nil {
		return nil, err
	}
	var config struct{ Data map[string]string }
	if a.code != http.StatusOK || json.Unmarshal(a.body, &config) != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: the API server answers %d: %.200s", namespace, migration.CAName, a.code, a.body)
	}
	if config.Data[migration.CAKey] == "" {
		return nil, errors.New("the ConfigMap " + migration.CAName + " has no " + migration.CAKey)
	}
	return []byte(config.Data[migration.CAKey]), nil
}

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const (
	// signingPoll is how often Sign looks for the certificate, signingTimeout for
	// how long.
	signingPoll    = 500 * time.Millisecond
	signingTimeout = 30 * time.Second
	// certificateLife is the requested lifetime.
	certificateLife = 24 * time.Hour
)

// Sign implements transfer.Signer.
func (m *Migrations) Sign(ctx context.Context, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	a, err := m.source.create(ctx, signingRequests(), "", map[string]any{
		"metadata": map[string]any{"generateName": "vmgrace-migration-" + m.source.node + "-"},
		"spec": map[string]any{
			"request": request, "signerName": migration.SignerName, "expirationSeconds": int(certificateLife.Seconds()),
			"usages": []string{"digital signature", "client auth", "server auth"},
		},
	})
	var made object
	if err == nil {
		err = cmp.Or(a.expect(http.StatusCreated), json.Unmarshal(a.body, &made))
	}
	if err != nil {
		return nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	for {
		o, err := m.source.get(ctx, signingRequests(), key{"", made.Name})
		if err != nil {
			return nil, err
		}
		if cert, err := signed(o); cert != nil || err != nil {
			return cert, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("request %s was not signed: is the cluster-controller running?: %w", made.Name, ctx.Err())
		case <-time.After(signingPoll):
		}
	}
}

// signed returns the certificate, nil while there is none.
func signed(o *object) ([]byte, error) {
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

// Roots implements transfer.Signer. It reads the controller's ConfigMap.
func (m *Migrations) Roots(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	o, err := m.source.get(ctx, configMaps(), key{m.signers, migration.CAName})
	if errors.Is(err, errGone) {
		err = fmt.Errorf("%w: %w", migrate.ErrNoAuthority, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", m.signers, migration.CAName, err)
	}
	var data map[string]string
	_ = json.Unmarshal(o.Data, &data) // unreadable data counts as empty
	if data[migration.CAKey] == "" {
		return nil, errors.New("the ConfigMap " + migration.CAName + " has no " + migration.CAKey)
	}
	return []byte(data[migration.CAKey]), nil
}

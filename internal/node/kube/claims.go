package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
)

// claimSpec is the part of a PersistentVolumeClaim's spec that is read here.
type claimSpec struct {
	AccessModes []string
	VolumeName  string
}

// volumeSpec is the part of a PersistentVolume's spec that is read here.
type volumeSpec struct {
	NodeAffinity struct {
		Required struct{ NodeSelectorTerms []nodeTerm }
	}
}

// errNoVolume means that a claim is not bound. A pod that runs has only claims that are.
var errNoVolume = errors.New("the claim has no volume")

// Volume implements migratable.VMIs.
func (s *Source) Volume(ctx context.Context, namespace, claim string) (migratable.Volume, error) {
	o, err := s.get(ctx, claims(), key{namespace, claim})
	if err != nil {
		return migratable.Volume{}, err
	}
	var c claimSpec
	if err := json.Unmarshal(o.Spec, &c); err != nil {
		return migratable.Volume{}, fmt.Errorf("%w: claim %s: %w", errNotAPIServer, claim, err)
	}
	if c.VolumeName == "" || len(c.AccessModes) == 0 {
		return migratable.Volume{}, errNoVolume
	}
	if why := c.bound(); why != "" {
		return migratable.Volume{Bound: why}, nil
	}
	if o, err = s.get(ctx, volumes(), key{"", c.VolumeName}); err != nil {
		return migratable.Volume{}, err
	}
	var v volumeSpec
	if err := json.Unmarshal(o.Spec, &v); err != nil {
		return migratable.Volume{}, fmt.Errorf("%w: volume %s: %w", errNotAPIServer, c.VolumeName, err)
	}
	return v.volume(c.VolumeName), nil
}

// bound returns why Kubernetes lets only one node use the claim, or "". While a VM is moved, two
// nodes use it.
func (c *claimSpec) bound() string {
	onlyRead := !slices.ContainsFunc(c.AccessModes, func(mode string) bool { return mode != "ReadOnlyMany" })
	if onlyRead || slices.Contains(c.AccessModes, "ReadWriteMany") {
		return ""
	}
	return cut(fmt.Sprintf("is not shared: its access modes are %s, not ReadWriteMany", strings.Join(c.AccessModes, ", ")), maxCondition)
}

func (v *volumeSpec) volume(name string) migratable.Volume {
	if host := v.host(); host != "" {
		return migratable.Volume{Bound: cut(fmt.Sprintf("is not shared: its volume %s is bound to node %s", name, host), maxCondition)}
	}
	return migratable.Volume{} // who has made it says that several nodes may use it
}

// host returns the only node that has the volume, or "" if there may be others.
func (v *volumeSpec) host() string {
	only := map[string]bool{}
	for _, t := range v.NodeAffinity.Required.NodeSelectorTerms {
		host := ""
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			if (e.Key == hostname || e.Key == "metadata.name") && e.Operator == "In" && len(e.Values) == 1 {
				host = e.Values[0]
			}
		}
		only[host] = true
	}
	if len(only) != 1 {
		return ""
	}
	for host := range only {
		return host
	}
	return ""
}

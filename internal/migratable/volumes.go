package migratable

import (
	"context"
	"time"
)

// volumeTTL is how long the API server's word on a claim counts: a launcher that changes its
// directory all the time must not cause requests.
const volumeTTL = recheckInterval / 2

// volumes has what the API server has said of claims. It is for one goroutine.
type volumes struct {
	of  VMIs
	has map[[2]string]told // by namespace and claim
}

type told struct {
	volume Volume
	at     time.Time
}

func (c *volumes) volume(ctx context.Context, namespace, claim string) (Volume, error) {
	k := [2]string{namespace, claim}
	if t, ok := c.has[k]; ok && time.Since(t.at) < volumeTTL {
		return t.volume, nil
	}
	v, err := c.of.Volume(ctx, namespace, claim)
	if err != nil {
		return Volume{}, err //nolint:wrapcheck // it says what was tried
	}
	c.has[k] = told{v, time.Now()}
	return v, nil
}

// forget drops what no longer counts.
func (c *volumes) forget() {
	for k, t := range c.has {
		if time.Since(t.at) >= volumeTTL {
			delete(c.has, k)
		}
	}
}

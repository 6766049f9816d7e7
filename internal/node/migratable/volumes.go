package migratable

import "context"

// volumes has what the API server has said of claims since the last check of all: a launcher that
// changes its directory all the time must not cause requests. It is for one goroutine.
type volumes struct {
	of  VMIs
	has map[[2]string]Volume // by namespace and claim
}

func (c *volumes) volume(ctx context.Context, namespace, claim string) (Volume, error) {
	k := [2]string{namespace, claim}
	if v, ok := c.has[k]; ok {
		return v, nil
	}
	v, err := c.of.Volume(ctx, namespace, claim)
	if err != nil {
		return Volume{}, err //nolint:wrapcheck // it says what was tried
	}
	c.has[k] = v
	return v, nil
}

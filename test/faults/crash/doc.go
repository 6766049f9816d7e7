// Package crash kills the agent: at every named step between cause and
// cleanup, a thousand times at random, and now and then in a long soak.
package crash

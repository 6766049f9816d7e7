// Package gracecache keeps the grace records of one node on its disk.
//
// A grace period must survive the agent, so its record is durable before the
// guest hears anything. There is one JSON file per VM, named after its domain:
// small enough to be replaced whole, plain enough to be read by a person, and
// independent of its neighbours, so that no damage spreads. A file that cannot
// be trusted is moved aside and reported; it is never read as "no grace
// period", and never deleted. docs/on-disk-format.md describes the format.
package gracecache

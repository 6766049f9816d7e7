// Package gracecache keeps the grace records of one node on its disk.
//
// A grace period must survive the agent, so its record is durable before the guest is
// asked. There is one JSON file per VM, named after its domain. It is small enough to be
// replaced whole, a person can read it, and damage does not spread to other files. An
// untrusted file is moved aside and reported; it is never read as "no grace period", and
// never deleted. docs/on-disk-format.md describes the format.
package gracecache

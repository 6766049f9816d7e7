// Package golden has, for each release, what its programs write for others to read: records of the grace cache,
// files of launcher directories, objects. Its tests read all of it with today's code.
//
// A directory has the name of its release; next is what the sources write now. Its file means has a line for each
// field that is not zero, by the names of Go's types: written from the values themselves, never from what was read.
// make golden writes next anew, make golden VERSION=v1.2.3 the directory of a release, which nobody changes afterwards.
package golden

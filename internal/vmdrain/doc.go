// Package vmdrain is kubectl vmdrain: it empties nodes as pkg/drain decides.
// What is seen comes from informers, which tell of each change; what is asked
// goes straight to the API server, each call with a bound. One goroutine owns the
// plan and everything that is shown; answers come to it over a channel.
package vmdrain

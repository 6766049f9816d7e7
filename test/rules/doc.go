// Package rules checks the project's rules that no linter knows: which package may import
// which, how long a file may be, what must be documented. Imports point inwards, to a core
// that imports no other package of the project.
package rules

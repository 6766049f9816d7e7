#!/usr/bin/env bash
# Runs every fuzz test for a while: fuzz.sh 20000x, or fuzz.sh 10m. What it
# finds is left below testdata/fuzz, where every later test run tries it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

while IFS=: read -r file name; do
	# A bounded end is a count: go test may call the end of a time a failure.
	go test -tags libvirt_dlopen -run '^$' -fuzz "^$name\$" -fuzztime "${1:-20000x}" "./$(dirname "$file")" </dev/null
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd internal pkg test | sed 's/:func /:/')

#!/usr/bin/env bash
# Runs a go test of many packages and prints what it prints. On a terminal one line says what is
# done of what. The last lines are what the failed tests have said, and how to run each again:
#
#   tests.sh "PACKAGES" COMMAND...
set -uo pipefail

read -rd '' -a packages <<<"$1" || true
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
terminal=0
[[ -t 1 ]] && terminal=1

# say prints lines as they come; awk would wait for a block of them.
say() {
	local line done=0
	while IFS= read -r line; do
		((!terminal)) || printf '\r\033[K'
		printf '%s\n' "$line"
		[[ ! $line =~ ^(ok|FAIL|\?)[[:space:]] ]] || ((++done))
		((!terminal)) || printf '%d of %d packages' "$done" "${#packages[@]}"
	done
	((!terminal)) || printf '\r\033[K'
}

env "$@" "${packages[@]}" 2>&1 | tee "$log" | say
status=${PIPESTATUS[0]}
[[ $status == 0 ]] && exit

printf '\nWhat the failed tests have said:\n'
# First their names are read, then the lines that follow one of these names.
awk 'NR == FNR { if ($1 == "---" && $2 == "FAIL:") failed[$3] = 1; next }
	$1 == "===" || $1 == "---" { said = ($1 == "===" ? $3 : ($2 == "FAIL:" ? $3 : "")) in failed; if (!said) next }
	/^panic: / || /^\trunning tests:/ || /^\t\tTest/ { print substr($0, 1, 400) }
	said && (/_test\.go:[0-9]+:/ || /^ *--- FAIL:/) { print substr($0, 1, 400) }' "$log" "$log" | head -n 60
printf '\nOne of them again:\n'
awk '$1 == "---" && $2 == "FAIL:" && /^---/ { names = names " " $3 }
	$1 == "FAIL" && NF > 1 {
		sub(/^github.com\/vmgrace\/vmgrace/, ".", $2)
		count = split(names, each, " ")
		if (!count) print "  make test-one P=" $2 " T=."
		for (i = 1; i <= count; i++) print "  make test-one P=" $2 " T=\x27^" each[i] "$\x27"
		names = ""
	}' "$log"
exit "$status"

#!/usr/bin/env bash
# Runs a command that may take minutes, and says each ten seconds on standard error that it goes
# on:
#
#   progress.sh WHAT COMMAND [ARGUMENT...]
#
# What the command prints to standard output is dropped.
set -euo pipefail

what=$1
shift
(
	trap 'kill $! 2>/dev/null; exit' TERM
	begin=$SECONDS
	while :; do
		sleep 10 &
		wait $!
		echo "$what: $(((SECONDS - begin) / 60)) min $(((SECONDS - begin) % 60)) s" >&2
	done
) &
trap 'kill $! 2>/dev/null || true' EXIT
# In the foreground: sudo may ask for a password, and Ctrl-C ends it.
"$@" >/dev/null

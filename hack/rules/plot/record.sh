#!/bin/sh
# record.sh DIR: runs make demo, and keeps the node-agent's /metrics of each second in
# DIR/<Unix time>. Start it in the repository's root, as root.
set -eu
dir=$1
mkdir -p "$dir"
make demo &
demo=$!
while kill -0 $demo 2>/dev/null; do
	address=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -A1 -x -e --metrics-address | grep -m1 '^127' || true)
	if [ -n "$address" ]; then
		file=$dir/$(date +%s)
		curl -sf -m 1 "http://$address/metrics" -o "$file.new" && mv "$file.new" "$file" || true
	fi
	sleep 1
done
wait $demo

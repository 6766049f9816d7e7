#!/bin/sh
# How late a deadline's sleep ends on a busy node, by the CPU that the
# DaemonSet requests, and as a real-time thread: beside two containers for each
# core that request one CPU and want all of it. Needs root.
set -eu
cd "$(dirname "$0")/.."
[ -x bin/floor ] || { echo "bin/floor is missing: CGO_ENABLED=0 go build -o bin/floor ./test/bench/floor" >&2; exit 1; }

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	top=/sys/fs/cgroup
	echo +cpu >$top/cgroup.subtree_control
	request() { echo $((1 + ($2 * 1024 / 1000 - 2) * 9999 / 262142)) >"$1/cpu.weight"; }
else
	top=/sys/fs/cgroup/cpu
	request() { echo $(($2 * 1024 / 1000)) >"$1/cpu.shares"; }
fi
top=$top/vmgrace-cpu-request
join='echo $$ >"$0/cgroup.procs" && exec "$@"'

busy=
mkdir "$top" "$top-agent"
trap 'exit 1' INT TERM # sh does not come to EXIT by itself then
trap 'kill $busy || :; wait; rmdir "$top"-* "$top"' EXIT
for i in $(seq $((2 * $(nproc)))); do
	mkdir "$top-$i"
	request "$top-$i" 1000
	sh -c "$join" "$top-$i" sh -c 'while :; do :; done' &
	busy="$busy $!"
done
late() { # of 500 timers
	sort -n | awk -v who="$1" '
		{ late[NR] = $1 / 1e6 }
		END { if (NR != 500) exit 1
			printf "%s: late p50 %6.2f ms, p99 %6.2f ms, max %6.2f ms\n", who, late[int(NR/2)], late[int(NR*0.99)], late[NR] }'
}
for milli in 20 50 100 250; do
	request "$top-agent" $milli
	sh -c "$join" "$top-agent" bin/floor timers 500 20000000000 | late "request $milli m"
done
# Not in the container: a kernel with CONFIG_RT_GROUP_SCHED has none there.
chrt -r 1 bin/floor timers 500 20000000000 | late "real-time"

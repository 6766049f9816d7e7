# The control plane's network namespace: a bridge for the nodes (10.98.0.0/24)
# and kubernetes.default's address, so that pods need no kube-proxy to reach it.
set -e
ip link set lo up
ip addr add 10.96.0.1/32 dev lo
ip link add br0 type bridge
ip addr add 10.98.0.1/24 dev br0
ip link set br0 up
echo 1 >/proc/sys/net/ipv4/ip_forward

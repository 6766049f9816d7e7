# The first process of a node, in mount, PID, network and UTS namespaces of the
# node's own:
#
#   node.sh NAME DIR CACHE
#
# NAME is the host name, DIR the node's directory, CACHE what libvirt has found
# out about QEMU, shared by all nodes. When this process ends, which is when its
# standard input does, the kernel kills all others in the node. bash, because it
# reaps what has lost its parent.
set -e
mount --make-rprivate /
echo "$1" >/proc/sys/kernel/hostname
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward

# What a node has for itself; the rest of the file system is the machine's.
mount -t tmpfs -o mode=755 run /run
mkdir "$2/etc" "$2/etc-work"
mount -t overlay -o "lowerdir=/etc,upperdir=$2/etc,workdir=$2/etc-work" etc /etc
# libvirt asks for its own address, for 5 s where nobody knows it.
printf '%s\n' '127.0.0.1 localhost' '10.98.0.11 node-a' '10.98.0.12 node-b' >/etc/hosts
private() {
	mkdir -p "$1" "$2"
	mount --bind "$1" "$2"
}
private "$2/lib" /var/lib
private "$2/log" /var/log
private "$2/libvirt" /etc/libvirt
private "$3" /var/cache/libvirt

# Kubelet insists on these values and would set them for the whole machine: here
# it finds them as it wants them.
sysctl() {
	echo "$3" >"$1/sysctl-$(basename "$2")"
	mount --bind "$1/sysctl-$(basename "$2")" "/proc/sys/$2"
}
sysctl "$2" vm/overcommit_memory 1
sysctl "$2" vm/panic_on_oom 0
sysctl "$2" kernel/panic 10
sysctl "$2" kernel/panic_on_oops 1
sysctl "$2" kernel/keys/root_maxkeys 1000000
sysctl "$2" kernel/keys/root_maxbytes 25000000

# As systemd has it: pods see what is mounted later (HostToContainer).
mount --make-rshared /
echo ready
read -r _ || :

#!/usr/bin/env bash
# SPICE does not listen on 127.0.0.1 on a machine that has IPv6 addresses only.
#
# Guess: QEMU with -spice addr=127.0.0.1 starts wherever the loopback is up, as -vnc 127.0.0.1:0 does.
# Seen with QEMU 7.2.22 and spice-server 0.15.1 of Debian 12 (30 November 2026): where an interface
# besides the loopback has an IPv6 address (a link-local one is enough) and none has an IPv4 one, it ends
# with 1, "getaddrinfo(127.0.0.1,5900): Address family for hostname not supported" and "failed to
# initialize spice server". With the loopback alone it starts, and so it does once any interface has an
# IPv4 address, of no use to anybody. VNC starts in all three.
# Why: spice-server asks the resolver with AI_ADDRCONFIG, which leaves out a family of which the machine
# has no address, the loopback's not counted, even for an address that is written in digits.
# Who meets it: domains of virt-install and virt-manager (SPICE on 127.0.0.1 by default) on nodes with
# IPv6 only, and in test nodes with a bridge and no address; libvirt says "qemu unexpectedly closed the
# monitor". What helps there: listen on ::1, or an IPv4 address on any interface.
#
# Run as root on Debian or Ubuntu; it needs debootstrap, unshare and ip. Nothing outside its folder changes.
set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3,libspice-server1=0.15.1-1 \
	bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 || {
	# debootstrap of some versions takes no versions of packages: apt does.
	rm -rf "${root:?}"/* && debootstrap --variant=minbase bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1
	chroot "$root" apt-get -q -y install --no-install-recommends qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3 libspice-server1=0.15.1-1 >>"$root.log" 2>&1
}
rm -f "$root.log"
chroot "$root" qemu-system-x86_64 --version | head -n 1

# starts NETWORK DISPLAY...: whether QEMU runs for two seconds in a network namespace with the loopback
# (alone), with an interface that has a link-local IPv6 address (ipv6), and an IPv4 one, too (both).
starts() {
	local network=$1
	shift
	unshare --net sh -c '
		ip link set lo up
		[ "$1" = alone ] || { ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up; }
		[ "$1" != both ] || ip address add 192.0.2.1/24 dev d0
		until [ "$1" = alone ] || ip -6 address show dev d0 | grep -q fe80; do :; done
		root=$2 && shift 2
		timeout 2 chroot "$root" qemu-system-x86_64 -nodefaults -machine q35,accel=tcg -S -display none "$@"
		[ $? = 124 ]' sh "$network" "$root" "$@" 2>"$root/said"
}

status=0
check() {
	local want=$1 what=$2
	shift 2
	if starts "$@"; then got=starts; else got=ends; fi
	echo "$what: $got$(sed -n '/getaddrinfo/s/.*getaddrinfo/, getaddrinfo/p' "$root/said" | head -n 1)"
	[[ $got = "$want" ]] || { echo "  CHANGED: it was seen that it $want" && status=1; }
}
spice=(-spice addr=127.0.0.1,port=5900,disable-ticketing=on)
check starts 'SPICE on 127.0.0.1, the loopback alone' alone "${spice[@]}"
check ends 'SPICE on 127.0.0.1, IPv6 elsewhere' ipv6 "${spice[@]}"
check starts 'SPICE on 127.0.0.1, IPv6 and IPv4 elsewhere' both "${spice[@]}"
check starts 'VNC on 127.0.0.1, IPv6 elsewhere' ipv6 -vnc 127.0.0.1:0
exit "$status"

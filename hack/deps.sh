#!/usr/bin/env bash
# Installs what the tests and the demo need and is missing, on Debian 12, Debian 13 or
# Ubuntu 24.04. Asks nothing; does nothing when all is there.
set -euo pipefail

die() {
	echo "deps: $*" >&2
	exit 1
}

# package | why
needed='
dbus-daemon|the bus on which the tests have a logind, elogind (below)
ca-certificates|downloads of Go modules
gcc|cgo, for the libvirt driver
libc6-dev|the C headers for cgo
libvirt0|the client library that node-agent loads
libvirt-daemon|the libvirtd that runs the test guests
libvirt-daemon-driver-qemu|its QEMU driver
libvirt-daemon-system|the user that libvirtd wants to know, libvirt-qemu
libvirt-clients|virsh, with which the tests start and stop guests
qemu-system-x86|the guests, emulated: KVM is not needed
iproute2|networks for the nodes of the test cluster
e2fsprogs|the ext4 disk that loses its power, in a test
socat|a way to the test cluster from outside of its network
strace|kills the shim at every step and fails the fsyncs of the agent, in tests
tini|the smallest entrypoint, beside which make bench measures the shim
xz-utils|unpacks the kernel modules of Debian 13 for the test guest
zstd|those of Ubuntu
'

[[ $(uname -m) == x86_64 ]] || die "the test guests are x86_64, this machine is $(uname -m)"
command -v dpkg-query apt-get >/dev/null || die "this is no Debian or Ubuntu; see hack/deps.sh for what is needed"

missing=()
while IFS='|' read -r package why; do
	[[ -n $package ]] || continue
	status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
	[[ $status != 'install ok installed' ]] || continue
	echo "deps: $package is missing: $why"
	missing+=("$package")
done <<<"$needed"
root=()
[[ $(id -u) == 0 ]] || root=(sudo)
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }
if [[ ${#missing[@]} -gt 0 ]]; then
	echo "deps: installing ${missing[*]}"
	apt update
	apt install --no-install-recommends "${missing[@]}"
fi

# A real logind for the tests. It is only unpacked: installed, it would take the
# place of systemd's.
elogind=${VMGRACE_CACHE:-/var/cache/vmgrace}/elogind
if [[ ! -e $elogind ]]; then
	echo "deps: unpacking elogind, the logind of the tests, into $elogind"
	dir=$(mktemp -d)
	trap '"${root[@]}" rm -rf "$dir"' EXIT
	cd "$dir"
	sources=()
	download() { "${root[@]}" apt-get -q "${sources[@]}" -o APT::Sandbox::User=root download elogind; }
	download || { apt update && download; } || {
		echo "deps: this distribution has no elogind; taking Debian 12's"
		apt install --no-install-recommends debian-archive-keyring
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" >debian.list
		mkdir -p lists/partial
		sources=(-o "Dir::Etc::SourceList=$dir/debian.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$dir/lists")
		"${root[@]}" apt-get -q "${sources[@]}" update && download
	}
	"${root[@]}" dpkg -x "$dir"/elogind_*.deb "$dir/elogind"
	"${root[@]}" mkdir -p "${elogind%/*}"
	"${root[@]}" cp -rT "$dir/elogind" "$elogind.new"
	"${root[@]}" mv -T "$elogind.new" "$elogind"
fi

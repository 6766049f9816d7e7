#!/usr/bin/env bash
# Runs a command on another distribution than this machine's:
#
#   root.sh debian13|ubuntu24.04 COMMAND...
#
# Its root is made by debootstrap, once: a minute. root.sh NAME hack/deps.sh installs there
# what the tests need. The command sees this repository, /tmp, and Go and Kubernetes of
# this machine with their caches; this machine's own root is /host. Nothing there runs as a
# service.
set -euo pipefail
umask 022
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$1
shift
case $name in
debian13)
	suite=trixie mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} components=main
	keyring=/usr/share/keyrings/debian-archive-keyring.gpg script=sid
	archives=("$mirror $suite-updates" "${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security} $suite-security")
	;;
ubuntu24.04)
	suite=noble mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} components='main universe'
	archives=("$mirror $suite-updates" "$mirror $suite-security")
	keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg script=gutsy
	;;
*)
	echo "root: $name is none of debian13, ubuntu24.04" >&2
	exit 2
	;;
esac
root=${VMGRACE_CACHE:-/var/cache/vmgrace}/roots/$name

sudo=()
[[ $(id -u) == 0 ]] || sudo=(sudo)
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >&2; }

make_root() {
	PATH=$PATH:/usr/sbin:/sbin # Debian's users have no sbin in their PATH
	local packages=(debootstrap debian-archive-keyring) archive
	dpkg-query -W "${packages[@]}" >/dev/null 2>&1 ||
		apt install --no-install-recommends "${packages[@]}" || { apt update && apt install --no-install-recommends "${packages[@]}"; }
	if [[ ! -e $keyring ]]; then # Debian has Ubuntu's since version 13
		"${BASH_SOURCE[0]}" debian13 sh -c "[ -e $keyring ] || { apt-get -q update && apt-get -q -y install ubuntu-keyring; }" >&2
		keyring=${root%/*}/debian13$keyring
	fi
	echo "root: making a root of $name with debootstrap, a minute" >&2
	"${sudo[@]}" rm -rf "$root.new"
	"${sudo[@]}" mkdir -p "${root%/*}"
	"${sudo[@]}" debootstrap --variant=minbase --keyring="$keyring" --include=ca-certificates,make --components="${components// /,}" "$suite" "$root.new" "$mirror" "$script" >"/tmp/root-$name.log" 2>&1 ||
		{ tail -20 "/tmp/root-$name.log" >&2; return 1; }
	for archive in "$mirror $suite" "${archives[@]}"; do echo "deb $archive $components"; done | "${sudo[@]}" tee "$root.new/etc/apt/sources.list" >/dev/null
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$root.new/usr/sbin/policy-rc.d" >/dev/null # packages start nothing
	"${sudo[@]}" chmod 755 "$root.new/usr/sbin/policy-rc.d"
	"${sudo[@]}" mkdir "$root.new/host"
	"${sudo[@]}" mv -T "$root.new" "$root" # complete or not there
}

[[ -e $root ]] || make_root

# A chroot would not do: nsenter leads out of it. The first argument is the root, those up to
# -- are what it shares with this machine.
enter='set -e
mount --bind "$1" "$1"
cd "$1"
shift
while [ "$1" != -- ]; do mkdir -p ".$1"; mount --rbind "$1" ".$1"; shift; done
shift
pivot_root . host
cd "$1"
shift
exec env PATH="$PATH" "$@"'

cluster=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}
shared=("$here" "$(go env GOROOT)" "$(go env GOMODCACHE)" "$(go env GOCACHE)" "$cluster")
mkdir -p "${shared[@]}"
exec "${sudo[@]}" unshare --mount env -u VMGRACE_CACHE HOME=/root GOFLAGS='-buildvcs=false -trimpath' GOTOOLCHAIN=local GOMODCACHE="$(go env GOMODCACHE)" GOCACHE="$(go env GOCACHE)" VMGRACE_CLUSTER="$cluster" \
	PATH="$(go env GOROOT)/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
	sh -c "$enter" sh "$root" /dev /proc /sys /tmp "${shared[@]}" -- "$here" "$@"

#!/usr/bin/env bash
# Makes the kernel and the initramfs of the test guest out of packages of the
# distribution, installing nothing, and prints the directory they are in:
#
#   build.sh [OUTDIR]     default ${VMGRACE_CACHE:-/var/cache/vmgrace}/guest
#
# A guest that this version of the script and of init has made before is taken
# as it is: no network. It must be readable for QEMU's own user, which is why
# the default is not below a home directory.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-${VMGRACE_CACHE:-/var/cache/vmgrace}/guest}
modules=(button evdev virtio virtio_ring virtio_pci virtio_pci_legacy_dev virtio_pci_modern_dev virtio_console virtio_blk failover net_failover virtio_net)

die() {
	echo "test guest: $*" >&2
	exit 1
}

# finished prints the newest guest made of these very sources, if there is one.
finished() {
	local dir newest=
	for dir in "$out/$key"-*/; do
		[[ -f $dir/initrd && ( -z $newest || $dir -nt $newest ) ]] && newest=$dir
	done
	[[ -n $newest ]] && echo "${newest%/}"
}

# kernel_package prints the name of the newest kernel image in the distribution.
kernel_package() {
	local meta
	for meta in linux-image-cloud-amd64 linux-image-virtual; do # Debian, Ubuntu
		apt-cache depends --important "$meta" 2>/dev/null |
			sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1 | grep . && return
	done
	return 1
}

# unpack downloads a package into the working directory and unpacks it into pkg/. What is said
# of it goes beside the guest: an image that has the guest lists its packages.
unpack() {
	apt-get -q -o APT::Sandbox::User=root download "$1" >&2 || die "cannot download the package $1"
	dpkg -x "$1"_*.deb pkg
	mkdir -p packages
	dpkg -f "$1"_*.deb >"packages/$1"
}

# add_module copies a module into the initramfs, unpacked: busybox reads no zstd.
add_module() {
	local ko
	ko=$(find pkg -name "$1.ko*" -print -quit)
	[[ -n $ko ]] || return 0 # built into the kernel
	case $ko in
	*.zst) zstd -dqc "$ko" ;;
	*.xz) xz -dc "$ko" ;;
	*) cat "$ko" ;;
	esac >"root/lib/modules/$version/$1.ko"
}

build() {
	local package
	package=$(kernel_package) || { apt-get update >&2 && package=$(kernel_package); } ||
		die "no linux-image-cloud-amd64 or linux-image-virtual in the package lists; run apt-get update"
	version=${package#linux-image-}
	unpack "$package"
	unpack busybox-static
	# Ubuntu has the modules in a package of their own.
	find pkg -path '*/modules/*/kernel' | grep -q . || unpack "linux-modules-$version"

	mkdir -p root/bin "root/lib/modules/$version"
	cp "$(find pkg -path '*/bin/busybox' -print -quit)" root/bin/
	./root/bin/busybox --list | while read -r applet; do
		[[ $applet == busybox ]] || ln -s busybox "root/bin/$applet"
	done
	for module in "${modules[@]}"; do add_module "$module"; done
	./root/bin/busybox depmod -b "$PWD/root" "$version"
	install -m 0755 "$here/init" root/init

	mkdir guest
	mv packages guest/
	cp pkg/boot/vmlinuz-* guest/vmlinuz
	chmod 0644 guest/vmlinuz
	# Not compressed: unpacking takes the emulated CPU longer than reading.
	(cd root && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >guest/initrd
	mv -T guest "$out/$key-$version" # complete or not there
}

mkdir -p "$out"
key=$(cat "$here/build.sh" "$here/init" | sha256sum | cut -c 1-12)
exec 9>"$out/.lock"
flock 9 # two at once: the second finds the guest of the first
if ! finished; then
	work=$(mktemp -d "$out/.build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	chmod 0755 "$work"
	cd "$work"
	build
	finished
fi

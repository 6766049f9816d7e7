#!/bin/sh
# images-rootfs.sh DIR FILE...: makes DIR the root of an image in which these
# programs and libraries of TARGETARCH find all their libraries. Runs in a Debian
# or Ubuntu; what packages the libraries come from is kept in the form that scanners for
# vulnerabilities read, with the licences.
set -eu
umask 022
. /images-arch.sh
root=$1
shift

# The programs' own paths are not kept: only libraries are copied.
mkdir -p "$root/usr/lib" "$root/usr/lib64" "$root/run" "$root/var/lib/dpkg/status.d" "$root/etc"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
ln -s ../run "$root/var/run"
cp -L /etc/os-release "$root/etc/os-release"

owner() { # FILE: its package; dpkg knows files by the path before or after the merge of /lib into /usr
	for path in "$1" "/usr$1" "${1#/usr}"; do
		dpkg-query -S "$path" 2>/dev/null | grep -v '^diversion ' && return
	done
	return 1
}

for file in "$@"; do
	libraries "$file" >/tmp/ldd
	if grep 'not found' /tmp/ldd; then
		echo "images-rootfs: a library that $file needs is missing" >&2
		exit 1
	fi
	sed -n 's/^\t\(.* => \)\{0,1\}\(\/[^ ]*\) (0x.*/\2/p' /tmp/ldd >>/tmp/found
	case $file in *.so*) echo "$file" >>/tmp/found ;; esac
done
sort -u /tmp/found >/tmp/libraries
grep -q /ld- /tmp/libraries # the loader: without it nothing starts

while read -r library; do
	mkdir -p "$root$(dirname "$library")"
	cp -L "$library" "$root$library"
	owner "$library" >/tmp/owner
	sed 's/\(: \|,\).*//' /tmp/owner >>/tmp/packages # with the architecture: two may be installed
done </tmp/libraries

for package in $(sort -u /tmp/packages); do
	name=${package%:*}
	dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$name"
	mkdir -p "$root/usr/share/doc/$name"
	cp -L "/usr/share/doc/$name/copyright" "$root/usr/share/doc/$name/copyright"
done

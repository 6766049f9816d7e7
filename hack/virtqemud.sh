#!/usr/bin/env bash
# Builds virtqemud, libvirt's daemon for QEMU alone, for the tests: Debian and Ubuntu
# ship libvirtd only. From the distribution's own source of the libvirt that is
# installed, whose QEMU driver it loads. 2 minutes on 2 cores, once.
set -euo pipefail
out=${VMGRACE_CACHE:-/var/cache/vmgrace}/virtqemud
version=$(dpkg-query -W -f '${source:Version}' libvirt0)
[[ ! -x $out || $(cat "$out.version" 2>/dev/null) != "$version" ]] || exit 0
echo "virtqemud: building it from the source of libvirt $version, 2 minutes" >&2

root=()
[[ $(id -u) == 0 ]] || root=(sudo)
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }
needed=(dpkg-dev gcc meson ninja-build pkg-config gettext python3-docutils xsltproc libxml2-utils rpcsvc-proto
	libxml2-dev libglib2.0-dev libgnutls28-dev libtirpc-dev libyajl-dev libjson-c-dev libcap-ng-dev libnl-3-dev libnl-route-3-dev)
apt install --no-install-recommends "${needed[@]}" || { apt update && apt install --no-install-recommends "${needed[@]}"; }

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/parts" "$dir/lists/partial"
# The same archives as for packages, asked for sources.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
	[[ ! -f $file ]] || sed -E 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" >"$dir/parts/${file##*/}"
done
sources=(-q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$dir/parts" -o "Dir::State::Lists=$dir/lists" -o APT::Sandbox::User=root)
apt-get "${sources[@]}" update
cd "$dir"
# Without the .dsc, which not every mirror has; what is fetched is checked all the same.
for only in tar diff; do apt-get "${sources[@]}" source "--$only-only" "libvirt=$version"; done
tar -xf libvirt_*.orig.tar.*z
cd libvirt-*/
tar -xf ../libvirt_*.debian.tar.*z
sed '/^#/d; /^$/d; s/ .*//' debian/patches/series | while read -r patch; do patch -s -p1 <"debian/patches/$patch"; done
json=yajl
! grep -qs "'json_c'" meson_options.txt || json=json_c # since libvirt 10.8
meson setup build --prefix=/usr --libdir="lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)" --sysconfdir=/etc --localstatedir=/var -Drunstatedir=/run \
	-Dauto_features=disabled -Ddriver_remote=enabled -Ddriver_libvirtd=enabled -Ddriver_qemu=enabled -D$json=enabled -Dcapng=enabled -Dlibnl=enabled -Ddocs=disabled -Dtests=disabled
ninja -C build src/virtqemud
"${root[@]}" mkdir -p "${out%/*}"
"${root[@]}" install -m 755 build/src/virtqemud "$out.new"
"${root[@]}" mv "$out.new" "$out"
echo "$version" | "${root[@]}" tee "$out.version" >/dev/null

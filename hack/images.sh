#!/usr/bin/env bash
# Makes the images of the Dockerfile and prints the directory they are in,
# ${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/product:
#
#   node-agent.tar      docker.io/vmgrace/node-agent:TAG
#   launcher-shim.tar   docker.io/vmgrace/launcher-shim:TAG
#   cluster-controller.tar
#   vm-example.tar         QEMU and a guest, for deploy/examples/vm.yaml
#
# for `ctr images import`; images.sh --names prints those names. TARGETS names
# some of them: the others are not made.
#
#   images.sh --layouts DIR ARCHITECTURE...
#
# makes them for a release instead, as OCI image layouts DIR/TARGET/ARCHITECTURE, with the
# security updates of today and SOURCE_DATE_EPOCH as their date.
#
# VERSION is the tag, and what the programs say of themselves. Without it the tag is the one
# that the manifests name (deploy/version), and the programs say which commit they are. What
# the same sources have made before is taken as it is, but not for a release. DEBIAN_SUITE is
# the Debian that they are based on, trixie. BUILDER=docker or BUILDER=podman uses those, with the base images of the
# Dockerfile. The default needs no daemon and no registry: Debian's buildah on a
# Debian made by debootstrap, with the Go and the module cache of this machine.
# Without --layouts these images are for tests: no security updates are in their libraries.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/product
builder=${BUILDER:-buildah}
version=${VERSION:-$(git -C "$here" describe --tags --always --dirty 2>/dev/null || echo unknown)}
tag=${VERSION:-$(sed -n '/newTag: /{s///p;q}' "$here/deploy/version/kustomization.yaml" | tr -d ' ')}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
security=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}
suite=${DEBIAN_SUITE:-trixie}
mapfile -t targets < <(sed -n 's/^FROM scratch AS //p' "$here/Dockerfile")
[[ -z ${TARGETS:-} ]] || read -ra targets <<<"$TARGETS"
work=$out/.build

root=()
[[ $(id -u) == 0 ]] || root=(sudo)

name() { echo "docker.io/vmgrace/$1:$tag"; }

if [[ ${1:-} == --names ]]; then
	for target in "${targets[@]}"; do name "$target"; done
	exit
fi

# What the images are made of; .dockerignore lets nothing else through.
key() {
	(
		cd "$here"
		echo "$version $tag $builder $suite $(go env GOVERSION GOOS GOARCH) ${TARGETS:-}"
		find Dockerfile .dockerignore LICENSE go.mod go.sum hack/images*.sh test/guest/build.sh test/guest/init api cmd internal pkg \
			-type f ! -name '*_test.go' ! -path '*/testdata/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
	) | sha256sum | cut -c 1-12
}

finished() {
	local target
	[[ -f $out/made-of-$key ]] || return 1
	for target in "${targets[@]}"; do [[ -f $out/$target.tar ]] || return 1; done
}

install_tools() {
	# -P: there is a function buildah. Debian's users have no sbin in their PATH.
	PATH=$PATH:/usr/sbin:/sbin
	type -P buildah >/dev/null && type -P debootstrap >/dev/null && type -P wget >/dev/null && return
	echo "images: installing buildah, debootstrap and wget" >&2
	# A keyring of Debian's, for the machine that is an Ubuntu.
	local packages=(buildah debootstrap debian-archive-keyring wget)
	apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >&2; }
	apt install --no-install-recommends "${packages[@]}" || { apt update && apt install --no-install-recommends "${packages[@]}"; }
}

# vfs and chroot ask nothing of the kernel: they work in a container, too.
# All of it is in one directory of our own and bothers no other storage.
buildah() {
	"${root[@]}" env BUILDAH_ISOLATION=chroot "$(type -P buildah)" \
		--root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

# debian NAME PACKAGES [COMMAND...] makes an image of Debian with these packages, in
# which the command was run, unless there is one.
debian() {
	local name=$1 packages=$2 container
	shift 2
	buildah inspect --type image "$name" >/dev/null 2>&1 && return
	echo "images: making a base with debootstrap: half a minute, once ($packages)" >&2
	container=$(buildah from scratch)
	"${root[@]}" debootstrap --variant=minbase --include="$packages" \
		"$suite" "$(buildah mount "$container")" "$mirror" >"$work/debootstrap.log" ||
		{ tail -20 "$work/debootstrap.log" >&2; return 1; }
	buildah umount "$container" >/dev/null
	buildah config --env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
	[[ $# == 0 ]] || "$@" "$container" >>"$work/debootstrap.log" 2>&1 || { tail -20 "$work/debootstrap.log" >&2; return 1; }
	buildah commit -q --rm "$container" "$name" >/dev/null
}

# make_base makes the base of the stages that build and that run: libvirt's client
# library, and what cgo needs. Go itself is mounted.
make_base() { debian "$base" libvirt0,gcc,libc6-dev,ca-certificates; }

# make_vm_base makes that of the example VM: QEMU, and the guest.
make_vm_base() { debian "$vm_base" qemu-system-x86,busybox-static,xz-utils,ca-certificates make_guest; }

# make_guest CONTAINER
make_guest() {
	buildah copy "$1" "$here/test/guest/build.sh" "$here/test/guest/init" / &&
		buildah run --network host "$1" -- bash /build.sh /guests
}

# make_release_base makes the base of a release's images: of both architectures' compilers
# and libraries, as the mirror has them today.
make_release_base() { debian "$base" ca-certificates release_packages; }

# make_release_vm_base likewise.
make_release_vm_base() { debian "$vm_base" ca-certificates release_vm_packages; }

# release_packages CONTAINER
release_packages() {
	update "$1" &&
		in_container "$1" apt-get -y install --no-install-recommends gcc libc6-dev libvirt0 \
			gcc-aarch64-linux-gnu libc6-dev-arm64-cross libvirt0:arm64 qemu-user
}

# release_vm_packages CONTAINER
release_vm_packages() {
	update "$1" &&
		in_container "$1" apt-get -y install --no-install-recommends qemu-system-x86 busybox-static xz-utils && make_guest "$1"
}

# update CONTAINER: security updates, and the packages of arm64.
update() {
	in_container "$1" sh -c "printf 'deb %s main\n' '$mirror $suite' '$mirror $suite-updates' '$security $suite-security' >/etc/apt/sources.list" &&
		in_container "$1" dpkg --add-architecture arm64 &&
		in_container "$1" apt-get update && in_container "$1" apt-get -y dist-upgrade
}

# in_container CONTAINER COMMAND...
in_container() { buildah run --network host --env DEBIAN_FRONTEND=noninteractive "$1" -- "${@:2}"; }

# mirrors prints what the mirrors have today: a release's base is made anew when they change.
mirrors() {
	local dir
	for dir in "$mirror/dists/$suite" "$mirror/dists/$suite-updates" "$security/dists/$suite-security"; do
		wget -q -O - "$dir/InRelease" || { echo "images: no answer from $dir" >&2; return 1; }
	done
}

# forget_bases removes the bases that earlier releases had.
forget_bases() {
	local image
	for image in $(buildah images --format '{{.Name}}:{{.Tag}}' | grep '^localhost/vmgrace/release'); do
		[[ $image == "$base" || $image == "$vm_base" ]] || buildah rmi "$image" >/dev/null
	done
}

# named NAME FUNCTION FILE...: an image's name that changes with what it is made of.
named() {
	local name=$1 function=$2
	shift 2
	echo "localhost/vmgrace/$name:$({ echo "$suite"; declare -f debian "$function"; cat /dev/null "$@"; } | sha256sum | cut -c 1-12)"
}

# with_buildah TARGET ARCHITECTURE
with_buildah() {
	local target=$1 arch=$2
	buildah bud --quiet --pull-never --network host --timestamp "${SOURCE_DATE_EPOCH:-0}" --platform "linux/$arch" \
		--build-arg BUILDPLATFORM="linux/$(go env GOHOSTARCH)" --build-arg GO_IMAGE="$base" --build-arg RUNTIME_IMAGE="$base" --build-arg VM_IMAGE="$vm_base" --build-arg VERSION="$version" \
		--volume "$(go env GOROOT):/usr/local/go:ro" \
		--volume "$(go env GOMODCACHE):/root/go/pkg/mod:ro" --volume "$compiled:/root/.cache/go-build" \
		--target "$target" --tag "$(name "$target")" "$here" >"$work/$target.log" 2>&1 || { cat "$work/$target.log" >&2; return 1; }
}

# archive TARGET
archive() {
	if [[ $builder == buildah ]]; then
		with_buildah "$1" "$(go env GOARCH)"
		buildah push --quiet "$(name "$1")" "oci-archive:$work/$1.tar:$(name "$1")" >&2
	else
		"$builder" build --build-arg VERSION="$version" --target "$1" --tag "$(name "$1")" "$here" >&2
		"$builder" save --output "$work/$1.tar" "$(name "$1")" >&2
	fi
}

# layout TARGET ARCHITECTURE DIR
layout() {
	case $builder in
	buildah)
		with_buildah "$1" "$2"
		buildah push --quiet "$(name "$1")" "oci:$3" >&2
		"${root[@]}" chown -R "$(id -u):$(id -g)" "$3"
		;;
	podman)
		podman build --build-arg BUILDPLATFORM="linux/$(go env GOHOSTARCH)" --build-arg VERSION="$version" --timestamp "${SOURCE_DATE_EPOCH:-0}" --platform "linux/$2" --target "$1" --tag "$(name "$1")" "$here" >&2
		podman push --quiet "$(name "$1")" "oci:$3" >&2
		;;
	*)
		"$builder" buildx build --build-arg VERSION="$version" --build-arg SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}" --platform "linux/$2" --target "$1" \
			--provenance=false --output "type=oci,tar=false,rewrite-timestamp=true,dest=$3" "$here" >&2
		;;
	esac
}

# prepare makes what buildah needs: base and vm_base are named, and made by these functions.
prepare() {
	"$1"
	"$2"
	(cd "$here" && go mod download)
	compiled=$(go env GOCACHE)
	[[ $(id -u) == 0 ]] || compiled=$work/go-build # nothing of root's among a user's files
	mkdir -p "$compiled"
}

# build makes the archives for the tests.
build() {
	local target vm_maker=make_vm_base
	[[ " ${targets[*]} " == *' vm-example '* ]] || vm_maker=true
	if [[ $builder == buildah ]]; then
		install_tools
		base=$(named base make_base)
		vm_base=$(named vm make_vm_base "$here/test/guest/build.sh" "$here/test/guest/init")
		prepare make_base "$vm_maker"
	fi
	for target in "${targets[@]}"; do archive "$target"; done
	[[ $builder != buildah ]] || buildah rmi --prune >/dev/null
}

# release DIR ARCHITECTURE... makes the layouts. The example's guest and QEMU are amd64's.
release() {
	local dir=$1 target arch
	shift
	if [[ $builder == buildah ]]; then
		install_tools
		mirrors >"$work/mirrors"
		base=$(named release make_release_base "$work/mirrors" "${BASH_SOURCE[0]}")
		vm_base=$(named release-vm make_release_vm_base "$work/mirrors" "${BASH_SOURCE[0]}" "$here/test/guest/build.sh" "$here/test/guest/init")
		forget_bases
		prepare make_release_base make_release_vm_base
	fi
	for target in "${targets[@]}"; do
		mkdir -p "$dir/$target"
		for arch in "$@"; do
			[[ $target == vm-example && $arch != amd64 ]] || layout "$target" "$arch" "$dir/$target/$arch"
		done
	done
	[[ $builder != buildah ]] || buildah rmi --prune >/dev/null
}

mkdir -p "$work"
exec 9>"$out/.lock"
flock 9 # two at once: the second finds what the first has made
if [[ ${1:-} == --layouts ]]; then
	release "${@:2}"
	exit
fi
key=$(key)
if ! finished; then
	rm -f "$out"/made-of-*
	build
	for target in "${targets[@]}"; do mv -f "$work/$target.tar" "$out/"; done
	touch "$out/made-of-$key" # complete or not there
fi
echo "$out"

#!/usr/bin/env bash
# Makes the images of the Dockerfile and prints the directory they are in,
# ${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/product:
#
#   node-agent.tar      docker.io/vmgrace/node-agent:TAG
#   launcher-shim.tar   docker.io/vmgrace/launcher-shim:TAG
#   cluster-controller.tar
#   vm-example.tar         QEMU and a guest, for deploy/examples/vm.yaml
#
# for `ctr images import`; images.sh --names prints those names. TARGETS names some of
# them: the others are not made. VERSION is the
# tag, and what the programs say of themselves. Without it the tag is the one that
# the manifests name (deploy/version), and the programs say which commit they are. What the same sources have made before is taken as it
# is. BUILDER=docker or BUILDER=podman uses those, with the base images of the
# Dockerfile. The default needs no daemon and no registry: Debian's buildah on a
# Debian made by debootstrap, with the Go and the module cache of this machine.
# Those images are for tests: no security updates are in their libraries.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/product
builder=${BUILDER:-buildah}
version=${VERSION:-$(git -C "$here" describe --tags --always --dirty 2>/dev/null || echo unknown)}
tag=${VERSION:-$(sed -n '/newTag: /{s///p;q}' "$here/deploy/version/kustomization.yaml" | tr -d ' ')}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
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
		echo "$version $tag $builder $(go env GOVERSION GOOS GOARCH) ${TARGETS:-}"
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
	command -v buildah >/dev/null && command -v debootstrap >/dev/null && return
	echo "images: installing buildah and debootstrap" >&2
	# A keyring of Debian's, for the machine that is an Ubuntu.
	local packages=(buildah debootstrap debian-archive-keyring)
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
		bookworm "$(buildah mount "$container")" "$mirror" >"$work/debootstrap.log" ||
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
make_vm_base() { debian "$vm_base" qemu-system-x86,busybox-static,ca-certificates make_guest; }

# make_guest CONTAINER
make_guest() {
	buildah copy "$1" "$here/test/guest/build.sh" "$here/test/guest/init" / &&
		buildah run --network host "$1" -- bash /build.sh /guests
}

# named NAME FUNCTION FILE...: an image's name that changes with what it is made of.
named() {
	local name=$1 function=$2
	shift 2
	echo "localhost/vmgrace/$name:$({ declare -f debian "$function"; cat /dev/null "$@"; } | sha256sum | cut -c 1-12)"
}

# with_buildah TARGET
with_buildah() {
	buildah bud --quiet --pull-never --network host --timestamp 0 \
		--build-arg GO_IMAGE="$base" --build-arg RUNTIME_IMAGE="$base" --build-arg VM_IMAGE="$vm_base" --build-arg VERSION="$version" \
		--volume "$(go env GOROOT):/usr/local/go:ro" \
		--volume "$(go env GOMODCACHE):/root/go/pkg/mod:ro" --volume "$compiled:/root/.cache/go-build" \
		--target "$1" --tag "$(name "$1")" "$here" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; return 1; }
	buildah push --quiet "$(name "$1")" "oci-archive:$work/$1.tar:$(name "$1")" >&2
}

# with_docker TARGET
with_docker() {
	"$builder" build --build-arg VERSION="$version" --target "$1" --tag "$(name "$1")" "$here" >&2
	"$builder" save --output "$work/$1.tar" "$(name "$1")" >&2
}

build() {
	local target
	if [[ $builder != buildah ]]; then
		for target in "${targets[@]}"; do with_docker "$target"; done
		return
	fi
	install_tools
	base=$(named base make_base)
	vm_base=$(named vm make_vm_base "$here/test/guest/build.sh" "$here/test/guest/init")
	make_base
	[[ " ${targets[*]} " != *' vm-example '* ]] || make_vm_base
	(cd "$here" && go mod download)
	compiled=$(go env GOCACHE)
	[[ $(id -u) == 0 ]] || compiled=$work/go-build # nothing of root's among a user's files
	mkdir -p "$compiled"
	for target in "${targets[@]}"; do with_buildah "$target"; done
	buildah rmi --prune >/dev/null
}

key=$(key)
mkdir -p "$work"
exec 9>"$out/.lock"
flock 9 # two at once: the second finds what the first has made
if ! finished; then
	rm -f "$out"/made-of-*
	build
	for target in "${targets[@]}"; do mv -f "$work/$target.tar" "$out/"; done
	touch "$out/made-of-$key" # complete or not there
fi
echo "$out"

#!/usr/bin/env bash
# Makes the programs and images of the test cluster (test/cluster) and prints the
# directory they are in, k8s-1.37 or k8s-1.34 of
# ${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}:
#
#   bin/      Kubernetes and etcd, built from their Go modules; containerd and
#             runc as Debian has them, unpacked, not installed
#   cni/      Debian's CNI plugins
#   images/   local.test/pause:1 and local.test/busybox:1 for `ctr images import`
#
# K8S=1.34 makes the older Kubernetes, and has the tests take it. Needs Go and the
# Debian package tools; 7 minutes on 2 cores, once. What these sources have made
# before is taken as it is: no network.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${K8S:=1.37} in
1.37) version=1.37.2 module=$here ;;
1.34) version=1.34.4 module=$here/1.34 ;;
*)
	echo "test cluster: K8S=$K8S is neither 1.37 nor 1.34" >&2
	exit 2
	;;
esac
out=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/k8s-$K8S
kubernetes=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)

die() {
	echo "test cluster: $*" >&2
	exit 1
}

finished() {
	local name
	[[ -f $out/made-of-$key ]] || return 1
	for name in "${kubernetes[@]}" etcd containerd containerd-shim-runc-v2 ctr runc; do
		[[ -x $out/bin/$name ]] || return 1
	done
	[[ -x $out/cni/bridge && -f $out/images/pause.tar && -f $out/images/busybox.tar ]]
}

# unpack downloads packages and unpacks them into pkg/.
unpack() {
	local root=()
	[[ $(id -u) == 0 ]] || root=(sudo)
	get() { apt-get -q -o APT::Sandbox::User=root download "$@" >&2; }
	get "$@" || { "${root[@]}" apt-get -q update >&2 && get "$@"; } || die "cannot download the packages $*"
	local deb
	for deb in ./*.deb; do dpkg -x "$deb" pkg; done
}

# gobuild MODULE ARGUMENT...
gobuild() {
	(cd "$1" && shift && GOWORK=off GOFLAGS='-mod=readonly -buildvcs=false' CGO_ENABLED=0 go build -trimpath "$@")
}

build_kubernetes() {
	local package flags='-s -w'
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${K8S#1.}"
		flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=unknown -X $package.buildDate=1970-01-01T00:00:00Z"
	done
	gobuild "$module" -ldflags "$flags" -o "$work/new/bin/" "${kubernetes[@]/#/k8s.io/kubernetes/cmd/}" go.etcd.io/etcd/server/v3
	mv new/bin/server new/bin/etcd
}

build_images() {
	gobuild "$here" -o "$work/mkimage" ./mkimage
	mkdir -p pause busybox/{bin,tmp,etc,proc,sys,dev} new/images
	gobuild "$here" -ldflags '-s -w' -o "$work/pause/pause" ./pause
	./mkimage new/images/pause.tar local.test/pause:1 pause /pause
	cp pkg/bin/busybox busybox/bin/
	busybox/bin/busybox --list | while read -r applet; do
		[[ $applet == busybox ]] || ln -s busybox "busybox/bin/$applet"
	done
	./mkimage new/images/busybox.tar local.test/busybox:1 busybox
}

build() {
	mkdir -p new/bin new/cni
	unpack containerd runc containernetworking-plugins busybox-static
	cp pkg/usr/bin/{containerd,containerd-shim-runc-v2,ctr} pkg/usr/sbin/runc new/bin/
	cp pkg/usr/lib/cni/* new/cni/
	build_images
	build_kubernetes
}

[[ $(uname -m) == x86_64 ]] || die "the test cluster is x86_64, this machine is $(uname -m)"
mkdir -p "$out"
key=$(cd "$here" && cat build.sh "$module"/go.{mod,sum} pause/main.go mkimage/main.go | sha256sum | cut -c 1-12)
exec 9>"$out/.lock"
flock 9 # two at once: the second finds what the first has made
if ! finished; then
	work=$(mktemp -d "$out/.build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cd "$work"
	echo "test cluster: building Kubernetes $version into $out: 7 minutes, once" >&2
	build
	for part in bin cni images; do
		rm -rf "${out:?}/$part"
		mv "new/$part" "$out/"
	done
	rm -f "$out"/made-of-*
	touch "$out/made-of-$key" # complete or not there
fi
echo "$out"

#!/usr/bin/env bash
# Makes the images and manifests of the last release out of this repository's history, for
# the test of an upgrade, and prints the directory they are in,
# ${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/previous:
#
#   product/node-agent.tar          docker.io/vmgrace/node-agent:previous
#   product/cluster-controller.tar  docker.io/vmgrace/cluster-controller:previous
#   deploy/                         its manifests, with these images
#
# hack/images.sh builds them and finds its bases in the directory of this version's images.
set -euo pipefail

# v0.1.0, which has no tag.
commit=f3dfb87

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}
git -C "$here" cat-file -e "$commit^{commit}" || { echo "the history of this repository is needed: git fetch --unshallow" >&2; exit 1; }
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
git -C "$here" archive "$commit" | tar -x -C "$sources"
cp "$here/hack/images.sh" "$sources/hack/"

mkdir -p "$out/previous/product" "$out/product/.build"
ln -sfn ../../product/.build "$out/previous/product/.build"
ln -sfn ../../product/.lock "$out/previous/product/.lock" # two builds at once would spoil the storage of both
# On the Debian that it was made for: its Dockerfile takes no other.
DEBIAN_SUITE=bookworm VMGRACE_CLUSTER=$out/previous VERSION=previous TARGETS='node-agent cluster-controller' "$sources/hack/images.sh" >/dev/null

rm -rf "$out/previous/deploy"
cp -r "$sources/deploy" "$out/previous/"
sed -i 's/newTag: .*/newTag: previous/' "$out/previous/deploy/version/kustomization.yaml"
echo "$out/previous"

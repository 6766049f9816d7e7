#!/usr/bin/env bash
# release.sh VERSION DIR [ARCHITECTURE...] makes a release (make release) in an empty DIR, with
# images for these architectures, and checks it. The date of everything is SOURCE_DATE_EPOCH,
# by default that of the commit.
set -euo pipefail
umask 022

version=$1 out=$(realpath -m "$2")
architectures=("${@:3}")
cd "$(dirname "${BASH_SOURCE[0]}")"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# What the environment says to a compiler would get into the programs.
export GOFLAGS=-buildvcs=false
unset GOEXPERIMENT GOAMD64 GOARM64 CGO_CFLAGS CGO_LDFLAGS

mkdir -p "$out"
[[ -z $(ls -A "$out") ]] || { echo "release: $out is not empty" >&2; exit 1; }
layouts=
if [[ ${#architectures[@]} -gt 0 ]]; then
	layouts=$(mktemp -d)
	trap 'rm -rf "$layouts"' EXIT
	VERSION=$version ../images.sh --layouts "$layouts" "${architectures[@]}"
fi
go run . -version "$version" -date "$SOURCE_DATE_EPOCH" -out "$out" -layouts "$layouts"
go test -count=1 -tags "dist${layouts:+,images}" -run Dist . -dist "$out"

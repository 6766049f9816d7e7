#!/usr/bin/env bash
# Builds the external-attacher, and a CSI driver that attaches nothing for it and for
# kubelet, into ${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/csi, for the tests.
# Half a minute on 2 cores, once, where make unit has compiled client-go: go.mod
# names the versions of the product's.
set -euo pipefail
out=${VMGRACE_CLUSTER:-$HOME/.cache/vmgrace-cluster}/csi
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p "$out"
export GOWORK=off GOFLAGS="-mod=readonly -buildvcs=false ${GOFLAGS:-}"
go build -ldflags "-s -w" -o "$out/" ./csi-attacher ./mock-csi

# Four images: --target node-agent (the default), launcher-shim, cluster-controller,
# vm-example.
#
#   docker build --target node-agent --build-arg VERSION="$(git describe --tags --always)" .
#
# hack/images.sh (make images) builds them without Docker. The same sources,
# VERSION and base images give the same programs, bit for bit: no path and no
# date gets into them. For another platform (docker buildx build --platform) all but the last
# stage still runs on the machine that builds: nothing there has to emulate that platform.
ARG GO_IMAGE=golang:1.26-trixie
ARG RUNTIME_IMAGE=debian:trixie-slim
ARG VM_IMAGE=debian:trixie-slim

# GO_IMAGE has Go, here or in /usr/local/go; a Debian without gcc, which cgo
# needs, is given it. Its libc must not be newer than RUNTIME_IMAGE's.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ENV GOTOOLCHAIN=local PATH=${PATH}:/usr/local/go/bin
ARG TARGETARCH
COPY hack/images-arch.sh /
RUN . /images-arch.sh; command -v $triplet-gcc >/dev/null || install_compiler
WORKDIR /src
# Modules first: they change less often than the sources.
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
COPY pkg pkg
ARG VERSION=unknown
# The flags are the Makefile's: test/deploy compares them.
RUN . /images-arch.sh; export GOARCH=$TARGETARCH CC=$triplet-gcc \
 && CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags libvirt_dlopen -ldflags "-X main.version=${VERSION}" -o bin/node-agent ./cmd/node-agent \
 && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o bin/launcher-shim ./cmd/launcher-shim \
 && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o bin/cluster-controller ./cmd/cluster-controller

# For the launcher container: one static file, which can also be taken from
# here into any other image (COPY --from=...launcher-shim /launcher-shim /).
FROM scratch AS launcher-shim
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vmgrace launcher-shim" \
      org.opencontainers.image.description="Entrypoint of a launcher container: turns SIGTERM into a graceful shutdown of its VM" \
      org.opencontainers.image.source="https://github.com/vmgrace/vmgrace" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/bin/launcher-shim /launcher-shim
COPY LICENSE /LICENSE
# Any user will do. A number, because runAsNonRoot cannot check a name.
USER 65532:65532
ENTRYPOINT ["/launcher-shim"]

FROM scratch AS cluster-controller
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vmgrace cluster-controller" \
      org.opencontainers.image.description="Has VMs moved instead of stopped when their launcher pods are evicted" \
      org.opencontainers.image.source="https://github.com/vmgrace/vmgrace" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/bin/cluster-controller /cluster-controller
COPY LICENSE /LICENSE
USER 65532:65532
ENTRYPOINT ["/cluster-controller"]

# QEMU with what it needs, and the guest of the tests: a Linux with busybox.
FROM ${VM_IMAGE} AS vm
# A base that has them needs no network.
RUN [ -x /usr/bin/qemu-system-x86_64 ] \
 || { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends qemu-system-x86 xz-utils; }
COPY hack/images-arch.sh hack/images-rootfs.sh test/guest/build.sh test/guest/init /
RUN [ -d /guests ] || bash /build.sh /guests
RUN sh /images-rootfs.sh /rootfs /usr/bin/qemu-system-x86_64 \
 && mkdir -p /rootfs/usr/bin /rootfs/usr/share/qemu /rootfs/usr/share/seabios /rootfs/usr/share/doc/qemu-system-x86 /rootfs/guest \
 && cp /usr/bin/qemu-system-x86_64 /rootfs/usr/bin/ \
 && cp /usr/share/qemu/linuxboot_dma.bin /usr/share/qemu/kvmvapic.bin /rootfs/usr/share/qemu/ \
 && cp -L /usr/share/seabios/bios-256k.bin /rootfs/usr/share/seabios/ \
 && cp /usr/share/doc/qemu-system-x86/copyright /rootfs/usr/share/doc/qemu-system-x86/ \
 && cp /guests/*/packages/* /rootfs/var/lib/dpkg/status.d/ \
 && dpkg-query -s seabios >/rootfs/var/lib/dpkg/status.d/seabios \
 && cp /guests/*/vmlinuz /guests/*/initrd /rootfs/guest/

# A whole VM for deploy/examples/vm.yaml: the shim, QEMU and a guest.
FROM scratch AS vm-example
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vmgrace example VM" \
      org.opencontainers.image.description="launcher-shim with QEMU and a small Linux guest, to try vmgrace" \
      org.opencontainers.image.source="https://github.com/vmgrace/vmgrace" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-2.0-only" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=vm /rootfs /
COPY LICENSE /usr/share/doc/vmgrace/LICENSE
COPY --from=build /src/bin/launcher-shim /launcher-shim
USER 65532:65532
ENTRYPOINT ["/launcher-shim"]

# libvirt's client library with what it needs, and nothing else of the base.
FROM --platform=$BUILDPLATFORM ${RUNTIME_IMAGE} AS libraries
ARG TARGETARCH
COPY hack/images-arch.sh hack/images-rootfs.sh /
# A base that has the library needs no network.
RUN . /images-arch.sh; [ -e /usr/lib/$triplet/libvirt.so.0 ] || install_libvirt
COPY --from=build /src/bin/node-agent /
# All of libvirt*.so.0: the agent's binding loads libvirt-admin, too.
RUN . /images-arch.sh; sh /images-rootfs.sh /rootfs /node-agent /usr/lib/$triplet/libvirt*.so.0

# The label has our own licence; the libraries' are in /usr/share/doc.
FROM scratch AS node-agent
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vmgrace node-agent" \
      org.opencontainers.image.description="Gives the VMs of a node their grace period" \
      org.opencontainers.image.source="https://github.com/vmgrace/vmgrace" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=libraries /rootfs /
COPY LICENSE /usr/share/doc/vmgrace/LICENSE
COPY --from=build /src/bin/node-agent /usr/bin/node-agent
# Root: libvirt's system socket, its run directory, QEMU's processes and the
# grace cache are root's. deploy/daemonset has the reason for each privilege.
USER 0:0
ENTRYPOINT ["/usr/bin/node-agent"]

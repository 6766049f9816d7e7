# Sourced by the stages of the Dockerfile, which run on the machine that builds: names of the
# architecture that the image is for, TARGETARCH. Without it that is the machine's.
TARGETARCH=${TARGETARCH:-$(dpkg --print-architecture)}
case $TARGETARCH in
amd64) cpu=x86_64 loader=/lib64/ld-linux-x86-64.so.2 ;;
arm64) cpu=aarch64 loader=/lib/ld-linux-aarch64.so.1 ;;
*)
	echo "images: no image is made for $TARGETARCH" >&2
	exit 1
	;;
esac
triplet=$cpu-linux-gnu

# same_arch says whether the machine that builds runs what it builds.
same_arch() { [ "$TARGETARCH" = "$(dpkg --print-architecture)" ]; }

# install PACKAGE...
install() {
	apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@"
}

# install_compiler installs what cgo needs for TARGETARCH.
install_compiler() {
	if same_arch; then
		install gcc libc6-dev ca-certificates
	else
		install "gcc-$triplet" "libc6-dev-$TARGETARCH-cross" ca-certificates
	fi
}

# install_libvirt installs libvirt's client library of TARGETARCH, and what runs its loader.
install_libvirt() {
	if same_arch; then
		install libvirt0
	else
		dpkg --add-architecture "$TARGETARCH" && install "libvirt0:$TARGETARCH" qemu-user
	fi
}

# libraries FILE lists the libraries of a program or library as ldd does, which is a script
# that runs the loader.
libraries() {
	if same_arch; then
		ldd "$1"
	else
		"qemu-$cpu" "$loader" --list "$1"
	fi
}

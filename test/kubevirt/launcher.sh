# Container compute: virt-launcher-monitor, which is PID 1, and virt-launcher. SIGTERM is
# passed on at once and marks the guest, which virt-handler then asks. Where nobody does,
# virt-launcher destroys the guest GRACE seconds later.
term() {
	[ -e /sockets/signalled ] && return
	: >/sockets/signalled
	(sleep "$GRACE" && kill -9 "$qemu") &
}
trap term TERM
rm -f /sockets/signalled
"$@" &
qemu=$!
while kill -0 "$qemu" 2>/dev/null; do wait "$qemu"; done
exit 0

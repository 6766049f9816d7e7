package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Listen makes libvirtd and QEMU accept guests from the libvirtds of other nodes, by TLS on
// an address, until the test ends. pki is a directory with the certificates: see
// libvirtListens and qemuListens.
func (n *Node) Listen(t T, address string, port int, pki string) {
	t.Helper()
	t.Cleanup(func() { n.relisten(t, false) })
	for file, more := range map[string]string{
		"libvirtd.conf": fmt.Sprintf(libvirtListens, address, port, pki),
		"qemu.conf":     fmt.Sprintf(qemuListens, address, pki),
	} {
		path := filepath.Join(n.Dir, "etc", file)
		was := readText(path)
		t.Cleanup(func() { writeText(t, path, was) })
		writeText(t, path, was+more)
	}
	n.relisten(t, true)
}

const libvirtListens = `listen_tls = 1
listen_addr = "%[1]s"
tls_port = "%[2]d"
ca_file = "%[3]s/cacert.pem"
cert_file = "%[3]s/server-cert.pem"
key_file = "%[3]s/server-key.pem"
`

const qemuListens = `migration_host = "%[1]s"
migration_address = "%[1]s"
migrate_tls_x509_cert_dir = "%[2]s"
migrate_tls_x509_verify = 1
`

func (n *Node) relisten(t T, listens bool) {
	t.Helper()
	n.listens = listens
	n.Libvirtd().Kill()
	// The test's context has ended when the cleanup undoes Listen.
	if err := n.StartLibvirtd(context.Background()); err != nil {
		t.Fatalf("restart libvirtd: %v", err)
	}
}

func writeText(t T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
}

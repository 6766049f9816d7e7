//go:build !unit

package handover

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// givenNative is like given, with libvirtds that migrate guests to each other by TLS and
// agents that let them. uri is their migration URI.
func givenNative(tb testing.TB) (w world, uri string) {
	tb.Helper()
	port, err := node.FreePort()
	if err != nil {
		tb.Fatal(err)
	}
	pki := certificates(tb)
	for _, h := range []*host{shared.a, shared.b} {
		h.Listen(tb, h.address, port, pki)
	}
	uri = fmt.Sprintf("qemu+tls://{{address}}:%d/system?pkipath=%s", port, pki)
	return given(tb, "--migration-uri="+uri), uri
}

// certificates makes a directory with one certificate that libvirt and QEMU of both hosts
// use as servers and as clients.
func certificates(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "libvirt test"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	host := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "host"}, NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.ParseIP(shared.a.address), net.ParseIP(shared.b.address)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	write := func(kind string, der []byte, names ...string) {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
				tb.Fatal(err)
			}
		}
	}
	sign := func(template *x509.Certificate, names ...string) {
		der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), key)
		if err != nil {
			tb.Fatal(err)
		}
		write("CERTIFICATE", der, names...)
	}
	sign(authority, "cacert.pem", "ca-cert.pem")
	sign(host, "server-cert.pem", "client-cert.pem", "clientcert.pem")
	write("PRIVATE KEY", secret, "server-key.pem", "client-key.pem", "clientkey.pem")
	return dir
}

//go:build !unit

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// certificate makes one for 127.0.0.1 that signs itself, and its PEM.
func certificate(t *testing.T) (*tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestARotatedCACountsWithoutARestart(t *testing.T) {
	var serving atomic.Pointer[tls.Certificate]
	var token atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token.Store(r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{}`)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving.Load(), nil }}
	server.StartTLS()
	defer server.Close()
	server.TLS.Certificates = nil

	dir := t.TempDir()
	ca, tokenFile, config := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig")
	kit.Write(t, config, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"c","user":{"tokenFile":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`, server.URL, ca, tokenFile))
	cert, text := certificate(t)
	serving.Store(cert)
	kit.Write(t, ca, string(text))
	kit.Write(t, tokenFile, "one")
	c, err := newClient(config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Client.CloseIdleConnections()
	get := func() error {
		_, err := ask(t.Context(), c.Get().AbsPath("/version"))
		return err
	}
	if err := get(); err != nil || token.Load() != "Bearer one" {
		t.Fatalf("%v, %v", err, token.Load())
	}

	cert, text = certificate(t)
	serving.Store(cert)
	server.CloseClientConnections()
	node.Eventually(t, soon, func() bool { return classify(get()) == distrusted }, "a certificate that nobody trusts is trusted")
	kit.Write(t, ca, string(text))
	if err := get(); err != nil {
		t.Errorf("the CA was rotated: %v", err)
	}
}

//go:build !unit

package rig

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vmgrace/vmgrace/test/kit"
)

// Proxy starts a server in front of the API server and returns a kubeconfig with which a
// program uses it. The server asks the API server with the rights of the given kubeconfig.
// change gets a proxy that changes nothing and returns the server's handler.
func (r *Rig) Proxy(t T, kubeconfig string, change func(*httputil.ReverseProxy) http.Handler) string {
	t.Helper()
	to, err := url.Parse(r.URL)
	kit.Must(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	kit.Must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1                         // a watch's events pass at once
	proxy.Transport, err = rest.TransportFor(config) // clients send no token where there is no TLS
	kit.Must(t, err)
	server := httptest.NewServer(change(proxy))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.Write(t, path, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: "+server.URL+"}}]\n")
	return path
}

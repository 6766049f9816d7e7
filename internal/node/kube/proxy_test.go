//go:build !unit

package kube

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// proxy stands between a Source and a real API server, and may misbehave. It
// talks to the server with its own identity, so that RBAC is real.
type proxy struct {
	kubeconfig string // for the Source
	server     *httptest.Server
	forward    *httputil.ReverseProxy

	mu       sync.Mutex
	fault    http.HandlerFunc // handles the requests that only picks, or all
	only     func(*http.Request) bool
	conns    map[net.Conn]bool
	requests []string // "GET /path?query"
	received map[string]*bytes.Buffer
}

// newProxy makes a proxy to the server that a kubeconfig names, as its user.
func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	c, err := newClient(upstream)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.Get().AbsPath("/").URL().String())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{conns: map[net.Conn]bool{}, received: map[string]*bytes.Buffer{}}
	p.forward = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: target.Scheme, Host: target.Host})
	p.forward.Transport = c.Client.Transport
	p.forward.FlushInterval = -1
	p.forward.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, _ error) {
		panic(http.ErrAbortHandler) // no answer, as if there were no proxy
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = nil
	p.server.Config.ConnState = p.track
	p.server.StartTLS()
	p.kubeconfig = p.writeKubeconfig(t)
	t.Cleanup(func() {
		p.recover()
		p.cut()
		p.server.Close()
		c.Client.CloseIdleConnections()
	})
	return p
}

func (p *proxy) writeKubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": p.server.URL, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "c", "user": map[string]any{}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "c"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (p *proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.Method+" "+r.URL.RequestURI())
	fault := p.fault
	if p.only != nil && !p.only(r) {
		fault = nil
	}
	body := p.received[r.URL.Path]
	if body == nil {
		body = &bytes.Buffer{}
		p.received[r.URL.Path] = body
	}
	p.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	p.forward.ServeHTTP(&tee{ResponseWriter: w, mu: &p.mu, to: body}, r)
}

// tee records what the proxy sends to a Source.
type tee struct {
	http.ResponseWriter
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w *tee) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.to.Write(b)
	w.mu.Unlock()
	return w.ResponseWriter.Write(b)
}

func (w *tee) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (p *proxy) track(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case http.StateNew:
		p.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	default:
	}
}

// breaks makes the proxy answer with fault, and closes open connections.
func (p *proxy) breaks(fault http.HandlerFunc) {
	p.mu.Lock()
	p.fault, p.only = fault, nil
	p.mu.Unlock()
	p.cut()
}

// breaksFor is like breaks for the requests that only picks. Open connections
// stay.
func (p *proxy) breaksFor(only func(*http.Request) bool, fault http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.only = fault, only
}

// recover ends the fault.
func (p *proxy) recover() { p.breaksFor(nil, nil) }

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// sent returns all that a Source got from paths that contain part.
func (p *proxy) sent(part string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var text strings.Builder
	for path, b := range p.received {
		if strings.Contains(path, part) {
			text.Write(b.Bytes())
		}
	}
	return text.String()
}

// asked counts the requests with this prefix.
func (p *proxy) asked(prefix string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// Faults.

func says(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

func textPage(code int) http.HandlerFunc {
	return says(code, "text/plain; charset=utf-8", fmt.Sprintf("%d %s\n", code, http.StatusText(code)))
}

// bareStatus answers with a Status that names no object.
func bareStatus(code int, reason string) http.HandlerFunc {
	return says(code, "application/json", fmt.Sprintf(
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":%q,"code":%d}`, reason, code))
}

// hang accepts requests and never answers.
func hang(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(5 * time.Minute):
	}
}

// hangUp takes requests and cuts the stream.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// emptyLists answers lists with empty lists, and watches with no event.
func (p *proxy) emptyLists(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		hang(w, r)
		return
	}
	var list map[string]any
	rec := httptest.NewRecorder()
	p.forward.ServeHTTP(rec, r)
	if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil || list["items"] == nil {
		w.WriteHeader(rec.Code)
		_, _ = io.Copy(w, rec.Body)
		return
	}
	list["items"] = []any{}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

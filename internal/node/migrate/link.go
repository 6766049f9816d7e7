package migrate

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

const (
	dialTimeout = 5 * time.Second
	// handshakeTimeout bounds the time from the acceptance of a connection to its hello.
	// lineTimeout bounds writing a line, and the source's wait for one.
	handshakeTimeout = 3 * time.Second
	lineTimeout      = 10 * time.Second
	maxLine          = 4096
	// heartbeatInterval is the longest time between two messages of a side, peerTimeout
	// how long its peer waits for one.
	heartbeatInterval = 5 * time.Second
	peerTimeout       = 3 * heartbeatInterval
)

// hello is the source's first line on a connection. The target answers with a reply, also
// one line.
type hello struct {
	MigrationUID string `json:"migrationUID"`
	Role         role   `json:"role"`
	// UUID is that of the guest, as in the migration's status.
	UUID string `json:"uuid,omitempty"`
	// Machine describes the guest's machine, with roleStream.
	Machine string `json:"machine,omitempty"`
}

type role string

const (
	roleRelay   role = "relay"   // libvirt's RPC follows
	roleStream  role = "stream"  // QEMU's stream follows
	roleControl role = "control" // messages follow
)

type reply struct {
	Error string `json:"error,omitempty"`
}

// message is a line of a control connection, in either direction.
type message struct {
	SourceState string `json:"sourceState,omitempty"`
	TargetState string `json:"targetState,omitempty"`
	// Ended means that the relay connection has ended at the target. Refusal is the reason
	// if the target has ended it.
	Ended   bool   `json:"ended,omitempty"`
	Refusal string `json:"refusal,omitempty"`
	// RanFor is how long the guest has run at the target, in nanoseconds by the target's
	// clock; 0 = unknown.
	RanFor time.Duration `json:"ranFor,omitempty"`
	// GuestPaused means that the source's guest was sent while paused by its user.
	// KeepsPaused means that the target leaves such a guest paused. Agents that do not know
	// it resume the guest.
	GuestPaused bool `json:"guestPaused,omitempty"`
	KeepsPaused bool `json:"keepsPaused,omitempty"`
	// Fenced means that the API server has shown the target that the source's node is fenced. The
	// source may be cut off from it.
	Fenced bool `json:"fenced,omitempty"`
	// Query means that the source's libvirt sends nothing more, and that the source asks
	// for the target's state. UUID is libvirt's UUID of the domain that is sent. A target
	// of an earlier version reads it here, not from the migration's status.
	Query bool   `json:"asks,omitempty"`
	UUID  string `json:"uuid,omitempty"`
}

// link is a connection between two agents.
type link struct {
	net.Conn

	in *bufio.Reader
}

func newLink(c net.Conn) *link { return &link{Conn: c, in: bufio.NewReaderSize(c, maxLine)} }

func (l *link) Read(b []byte) (int, error) { return l.in.Read(b) } //nolint:wrapcheck // an io.Reader

// readLine reads one JSON line of at most maxLine bytes.
func (l *link) readLine(to any) error {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	return nil
}

func (l *link) writeLine(v any) error {
	_ = l.SetWriteDeadline(time.Now().Add(lineTimeout)) // on failure the write fails, too
	if err := json.NewEncoder(l).Encode(v); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	_ = l.SetWriteDeadline(time.Time{}) // as above
	return nil
}

var errNoIdentity = errors.New("this node has no certificate yet: is the cluster-controller running?")

// tlsConfig makes both peers present a node certificate.
func tlsConfig(who *Identity) (*tls.Config, error) {
	cert, roots := who.Certificate(), who.roots.Load()
	if cert == nil || roots == nil {
		return nil, errNoIdentity
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		// The certificate has the node's name, not the address: dial checks it.
		InsecureSkipVerify:     true, //nolint:gosec // see VerifyConnection in dial
		SessionTicketsDisabled: true,
	}, nil
}

// nodeOf returns the node that a certificate is issued to.
func nodeOf(c *x509.Certificate) (string, error) {
	node, ok := strings.CutPrefix(c.Subject.CommonName, migration.CommonNamePrefix)
	if !ok || node == "" {
		return "", fmt.Errorf("a certificate for %.80q, which is no node's", c.Subject.CommonName)
	}
	return node, nil
}

// dial connects to the agent of a node and verifies that it is that node.
func dial(ctx context.Context, who *Identity, node, address string, h hello) (*link, error) {
	cfg, err := tlsConfig(who)
	if err != nil {
		return nil, err
	}
	roots := cfg.ClientCAs
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		peer := s.PeerCertificates[0] // a server always presents one
		if _, err := peer.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			return fmt.Errorf("the certificate of %s: %w", address, err)
		}
		if is, err := nodeOf(peer); err != nil || is != node {
			return errors.Join(fmt.Errorf("%s is not node %s", address, node), err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the agent of %s at %s: %w", node, address, err)
	}
	l := newLink(c)
	if err := l.handshake(h); err != nil {
		return nil, errors.Join(fmt.Errorf("the agent of %s: %w", node, err), c.Close())
	}
	return l, nil
}

func (l *link) handshake(h hello) error {
	_ = l.SetReadDeadline(time.Now().Add(lineTimeout)) // on failure the read fails, too
	if err := l.writeLine(h); err != nil {
		return err
	}
	var r reply
	if err := l.readLine(&r); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("it refuses: %.200s", r.Error)
	}
	_ = l.SetReadDeadline(time.Time{}) // as above
	return nil
}

// accept does the TLS handshake and reads the hello. The caller sends the reply.
func accept(ctx context.Context, who *Identity, c net.Conn) (l *link, node string, h hello, err error) {
	cfg, err := tlsConfig(who)
	if err != nil {
		return nil, "", h, err
	}
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout)) // on failure the handshake fails, too
	s := tls.Server(c, cfg)
	if err := s.HandshakeContext(ctx); err != nil {
		return nil, "", h, fmt.Errorf("a connection from %s: %w", c.RemoteAddr(), err)
	}
	if node, err = nodeOf(s.ConnectionState().PeerCertificates[0]); err != nil {
		return nil, "", h, err
	}
	l = newLink(s)
	if err := l.readLine(&h); err != nil {
		return nil, "", h, fmt.Errorf("a connection from %s: %w", node, err)
	}
	_ = c.SetDeadline(time.Time{}) // as above
	return l, node, h, nil
}

// copyBothWays copies in both directions until one connection ends, and closes both.
func copyBothWays(ctx context.Context, a, b io.ReadWriteCloser) {
	closeBoth := func() {
		_ = a.Close()
		_ = b.Close()
	}
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // an error ends both directions
			ended <- struct{}{}
		}()
	}
	<-ended
	closeBoth()
	<-ended
}

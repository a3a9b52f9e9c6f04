package matrix

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// begin is when the fault begins, from the start of the clock of a bubble. The state
// before the fault is reached in the time before.
const begin = 24 * time.Hour

// The addresses of the owners: two replicas of the one, and its neighbour.
const (
	replicaA  = "a.example:8008"
	replicaB  = "b.example:8008"
	neighbour = "n.example:8008"
)

// passports are all certificates. They are made once for all bubbles, as the clocks
// of all bubbles start at the same time.
type passports struct {
	consumer mtls.Files                                         // for the neighbour
	own      mtls.Files                                         // for the owner: these can be damaged
	issued   [2]mtls.Issued                                     // what they have: a good certificate, and one that expires before the fault
	owners   map[faultowner.Identity]map[string]tls.Certificate // by address
	roots    *x509.CertPool                                     // of the authority that consumers and owners know
	foreign  *x509.CertPool                                     // of another one
}

// mint makes the certificates in files below dir.
func mint(t *testing.T, dir string) *passports {
	t.Helper()
	p := &passports{
		owners: make(map[faultowner.Identity]map[string]tls.Certificate),
		roots:  x509.NewCertPool(), foreign: x509.NewCertPool(),
		consumer: mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")},
	}
	p.own = mtls.Files{Cert: p.consumer.Cert + ".own", Key: p.consumer.Key + ".own", CA: p.consumer.CA + ".own"}
	const century = 100 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		authority := must.Get(mtls.NewAuthority("test", century))(t)
		stranger := must.Get(mtls.NewAuthority("stranger", century))(t)
		p.roots.AppendCertsFromPEM(authority.PEM())
		p.foreign.AppendCertsFromPEM(stranger.PEM())
		issue := func(identity faultowner.Identity, authority *mtls.Authority, address string, leaf mtls.Leaf) {
			issued := must.Get(authority.Issue(leaf))(t)
			certificate := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
			if p.owners[identity] == nil {
				p.owners[identity] = make(map[string]tls.Certificate)
			}
			p.owners[identity][address] = certificate
		}
		name := func(address string) mtls.Leaf {
			host, _, _ := net.SplitHostPort(address)
			return mtls.Leaf{Name: host, DNSNames: []string{host}}
		}
		brief := name("consumer.example:0")
		brief.Lifetime = begin / 2
		p.issued = [2]mtls.Issued{must.Get(authority.Issue(name("consumer.example:0")))(t), must.Get(authority.Issue(brief))(t)}
		must.Do(t, p.issued[0].WriteFiles(p.consumer))
		for _, address := range []string{replicaA, replicaB, neighbour} {
			issue(faultowner.Right, authority, address, name(address))
			issue(faultowner.Strict, authority, address, name(address))
			issue(faultowner.Other, authority, address, name("other.example:0"))
			issue(faultowner.Foreign, stranger, address, name(address))
			old := name(address)
			old.Lifetime = begin / 2
			issue(faultowner.Expired, authority, address, old)
		}
		// The last certificates are valid from 15 seconds after the fault begins: the time
		// at which they are made, less an hour.
		time.Sleep(begin + 15*time.Second + time.Hour)
		for _, address := range []string{replicaA, replicaB} {
			issue(faultowner.Early, authority, address, name(address))
		}
	})
	return p
}

// mend writes the consumer's own files as they are at the beginning.
func (p *passports) mend(t *testing.T) {
	t.Helper()
	must.Do(t, p.issued[0].WriteFiles(p.own))
}

// damages are what makes the consumer's own files unusable.
var damages = []func(*passports) error{
	func(p *passports) error { return os.Remove(p.own.Cert) },
	func(p *passports) error { return os.Remove(p.own.Key) },
	func(p *passports) error { return os.WriteFile(p.own.Key, p.issued[1].Key, 0o600) },
	func(p *passports) error { return os.WriteFile(p.own.CA, p.issued[0].CA[:100], 0o600) },
	func(p *passports) error { return p.issued[1].WriteFiles(p.own) },
}

// credentials returns the credentials of the owner at the address.
func (p *passports) credentials(identity faultowner.Identity, address string) credentials.TransportCredentials {
	clients := p.roots
	if identity == faultowner.Strict {
		clients = p.foreign
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.owners[identity][address]},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, SessionTicketsDisabled: true,
	})
}

// network connects owners and consumers in memory. It must be made inside a bubble.
type network struct {
	closed func(address string, connection int) // is called when the consumer closes a connection

	mu        sync.Mutex // guards the fields below
	listeners map[string]*bufconn.Listener
	dialed    map[string]int
	made      map[string]int // connections, from the beginning
	open      map[string]int // connections
}

func (n *network) listen(address string) *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = bufconn.Listen(256 << 10)
	return n.listeners[address]
}

func (n *network) unlisten(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, address)
}

// dial connects to an address, as a net.Dialer does.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dialed[address]++
	listener := n.listeners[address]
	n.mu.Unlock()
	if listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made[address]++
	n.open[address]++
	connection := n.made[address]
	return &link{Conn: conn, closed: sync.OnceFunc(func() {
		n.mu.Lock()
		n.open[address]--
		n.mu.Unlock()
		n.closed(address, connection)
	})}, nil
}

// newest returns the number, from 1, of the connection with the address that was made
// last, or 0.
func (n *network) newest(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.made[address]
}

// connections returns the number of open connections to the addresses.
func (n *network) connections(addresses ...string) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, address := range addresses {
		all += n.open[address]
	}
	return all
}

// attempts returns how often the addresses have been dialed.
func (n *network) attempts(addresses ...string) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, address := range addresses {
		all += n.dialed[address]
	}
	return all
}

// link is the consumer's end of a connection.
type link struct {
	net.Conn

	closed func()
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.closed()
	return l.Conn.Close()
}

// serve runs an owner at the address until the returned function is called.
func (n *network) serve(t *testing.T, address string, s interface {
	Serve(ctx context.Context, listener net.Listener) error
},
) (stop func()) {
	listener := n.listen(address)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	return sync.OnceFunc(func() {
		n.unlisten(address)
		cancel()
		if err := <-done; err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("owner at %s: %v", address, err)
		}
	})
}

// quiet returns a logger that discards everything, or, where the environment has
// MATRIX_LOG, writes it to standard error.
func quiet() *slog.Logger {
	if os.Getenv("MATRIX_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

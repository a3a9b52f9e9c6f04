package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestHandshake(t *testing.T) {
	authority, other := newAuthority(t), newAuthority(t)
	owner := Leaf{
		DNSNames: []string{"owner.example", "*.wild.example"},
		IPs:      []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		URIs:     []string{"spiffe://example.org/owner"},
	}
	serverOnly, clientOnly := owner, owner
	serverOnly.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientOnly.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	expired := owner
	expired.Lifetime = 30 * time.Minute

	for name, tc := range map[string]struct {
		owner, consumer Leaf
		ownerCA         *Authority // that signs the owner, where it is another
		consumerCA      *Authority
		serverName      string
		ids             []string
		refused         string // by the consumer
		turnedAway      string // by the owner
	}{
		"host name":                        {owner: owner, serverName: "owner.example"},
		"host name with final dot":         {owner: owner, serverName: "owner.example."},
		"host name by wildcard":            {owner: owner, serverName: "a.wild.example"},
		"address":                          {owner: owner, serverName: "192.0.2.1"},
		"other host name":                  {owner: owner, serverName: "other.example", refused: `certificate is for "owner.example *.wild.example 192.0.2.1 spiffe://example.org/owner", not for "other.example"`},
		"common name":                      {owner: Leaf{Name: "owner.example"}, serverName: "owner.example", refused: "not for"},
		"SPIFFE ID, other host name":       {owner: owner, serverName: "other.example", ids: []string{"spiffe://example.org/owner"}},
		"one of several IDs":               {owner: owner, ids: []string{"spiffe://example.org/a", "b.example", "owner.example"}},
		"other SPIFFE ID, right host name": {owner: owner, serverName: "owner.example", ids: []string{"spiffe://example.org/owner2"}, refused: "not for [spiffe://example.org/owner2]"},
		"DNS ID by wildcard":               {owner: owner, ids: []string{"a.wild.example"}, refused: "not for"},
		"other CA, right host name":        {owner: owner, ownerCA: other, serverName: "owner.example", refused: "signed by unknown authority"},
		"owner for clients only":           {owner: clientOnly, serverName: "owner.example", refused: "incompatible key usage"},
		"consumer for servers only":        {owner: owner, consumer: serverOnly, serverName: "owner.example", turnedAway: "incompatible key usage"},
		"consumer of another CA":           {owner: owner, consumerCA: other, serverName: "owner.example", turnedAway: "signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			sign := func(own *Authority, leaf Leaf) *Source {
				if own == nil {
					own = authority
				}
				issued := issue(t, own, leaf)
				issued.CA = authority.PEM()
				return load(t, issued)
			}
			server, client := sign(tc.ownerCA, tc.owner), sign(tc.consumerCA, tc.consumer)
			clientErr, serverErr := handshake(client.Client(tc.serverName, parseIDs(t, tc.ids)), server.Server())

			var refusal *tls.CertificateVerificationError
			switch {
			case tc.refused != "":
				if !errors.As(clientErr, &refusal) || !strings.Contains(clientErr.Error(), tc.refused) {
					t.Errorf("consumer got %v, want %q", clientErr, tc.refused)
				}
				if serverErr == nil {
					t.Error("owner takes the connection for good")
				}
			case tc.turnedAway != "":
				if !errors.As(serverErr, &refusal) || !strings.Contains(serverErr.Error(), tc.turnedAway) {
					t.Errorf("owner got %v, want %q", serverErr, tc.turnedAway)
				}
				if clientErr == nil {
					t.Error("consumer takes the connection for good")
				}
			case clientErr != nil || serverErr != nil:
				t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
			}
		})
	}
}

// Certificates are judged at the time of the handshake, not of loading.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		server := load(t, issue(t, authority, Leaf{DNSNames: []string{"owner.example"}, Lifetime: 3 * time.Hour}))
		client := load(t, issue(t, authority, Leaf{Lifetime: 4 * time.Hour}))
		ids := parseIDs(t, []string{"owner.example"})

		start := time.Now()
		certificate, ca := client.Expiry()
		if !certificate.Equal(start.Add(3*time.Hour)) || !ca.Equal(start.Add(23*time.Hour)) {
			t.Errorf("expiry is %v and %v, now is %v", certificate, ca, start)
		}
		time.Sleep(2 * time.Hour)
		if clientErr, serverErr := handshake(client.Client("", ids), server.Server()); clientErr != nil || serverErr != nil {
			t.Fatalf("consumer got %v, owner got %v", clientErr, serverErr)
		}
		time.Sleep(time.Second)
		var invalid x509.CertificateInvalidError
		clientErr, _ := handshake(client.Client("", ids), server.Server())
		if !errors.As(clientErr, &invalid) || invalid.Reason != x509.Expired {
			t.Errorf("consumer got %v of an expired owner", clientErr)
		}
		server = load(t, issue(t, authority, Leaf{DNSNames: []string{"owner.example"}}))
		time.Sleep(time.Hour)
		_, serverErr := handshake(client.Client("", ids), server.Server())
		if !errors.As(serverErr, &invalid) || invalid.Reason != x509.Expired {
			t.Errorf("owner got %v of an expired consumer", serverErr)
		}
	})
}

// stranger returns credentials that accept every owner: what fails with them, the owner has
// refused.
func stranger(of *tls.Config) credentials.TransportCredentials {
	of.InsecureSkipVerify = true
	return credentials.NewTLS(of)
}

func TestConsumerWithoutCertificate(t *testing.T) {
	server := load(t, issue(t, newAuthority(t), Leaf{DNSNames: []string{"owner.example"}}))
	clientErr, serverErr := handshake(stranger(&tls.Config{}), server.Server())
	if clientErr == nil || serverErr == nil || !strings.Contains(serverErr.Error(), "client didn't provide a certificate") {
		t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	source := load(t, issue(t, newAuthority(t), Leaf{DNSNames: []string{"owner.example"}}))
	old := &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{source.material.Load().certificate}}
	if err, _ := handshake(stranger(old.Clone()), source.Server()); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("owner speaks TLS 1.2: %v", err)
	}
	if err, _ := handshake(source.Client("owner.example", nil), credentials.NewTLS(old)); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("consumer speaks TLS 1.2: %v", err)
	}
}

// A session that was verified for one identity must not open the door to
// another, and one from before a change of authorities not to anybody.
func TestResumption(t *testing.T) {
	authority := newAuthority(t)
	source := load(t, issue(t, authority, Leaf{DNSNames: []string{"owner.example"}}))
	m := source.material.Load()
	keys := m.certificate
	tickets := &tls.Config{Certificates: []tls.Certificate{keys}} // a server that hands them out
	right, wrong := parseIDs(t, []string{"owner.example"}), parseIDs(t, []string{"other.example"})

	t.Run("consumer has none", func(t *testing.T) {
		config := source.clientConfig(m, "owner.example", right)
		for range 3 {
			if resumed, err := dial(t, config, tickets); resumed || err != nil {
				t.Errorf("resumed %v, %v", resumed, err)
			}
		}
	})
	t.Run("owner gives none", func(t *testing.T) {
		server := source.serverConfig(m)
		config := source.clientConfig(m, "owner.example", right)
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		for range 3 {
			if resumed, err := dial(t, config, server); resumed || err != nil {
				t.Errorf("resumed %v, %v", resumed, err)
			}
		}
	})
	t.Run("consumer would verify it", func(t *testing.T) {
		cache := tls.NewLRUClientSessionCache(1)
		config := source.clientConfig(m, "owner.example", right)
		config.ClientSessionCache = cache
		if resumed, err := dial(t, config, tickets); resumed || err != nil {
			t.Fatalf("resumed %v, %v", resumed, err)
		}
		if resumed, err := dial(t, config, tickets); !resumed || err != nil {
			t.Fatalf("resumed %v, %v: the test resumes nothing", resumed, err)
		}
		config = source.clientConfig(m, "owner.example", wrong)
		config.ClientSessionCache = cache
		if _, err := dial(t, config, tickets); err == nil {
			t.Error("wrong identity is accepted in a resumed session")
		}
	})
}

// handshake connects both ends and has each read one byte of the other: in TLS
// 1.3 a consumer learns only then that its certificate was refused. The connection has
// buffers: else the ends of a handshake that fails halfway wait for each other.
func handshake(client, server credentials.TransportCredentials) (clientErr, serverErr error) {
	listener := bufconn.Listen(1 << 16)
	done := make(chan error)
	go func() {
		b, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		conn, _, err := server.ServerHandshake(b)
		if err == nil {
			err = exchange(conn)
		}
		b.Close()
		done <- err
	}()
	a, err := listener.Dial()
	if err != nil {
		listener.Close()
		return err, <-done
	}
	conn, _, err := client.ClientHandshake(context.Background(), "ignored.example", a)
	if err == nil {
		err = exchange(conn)
	}
	a.Close()
	return err, <-done
}

func exchange(conn net.Conn) error {
	written := make(chan error)
	go func() {
		_, err := conn.Write([]byte{1})
		written <- err
	}()
	_, err := conn.Read(make([]byte, 1))
	return errors.Join(err, <-written)
}

func dial(t *testing.T, client, server *tls.Config) (resumed bool, err error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn := tls.Server(b, server)
		if conn.Handshake() == nil {
			_ = exchange(conn)
		}
		b.Close()
	}()
	conn := tls.Client(a, client)
	if err = conn.Handshake(); err == nil {
		err = exchange(conn)
	}
	a.Close()
	<-done
	return conn.ConnectionState().DidResume, err
}

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	return must.Get(NewAuthority("test", 24*time.Hour))(t)
}

func issue(t *testing.T, a *Authority, leaf Leaf) Issued {
	t.Helper()
	return must.Get(a.Issue(leaf))(t)
}

func files(dir string) Files {
	return Files{
		Cert: filepath.Join(dir, "tls.crt"),
		Key:  filepath.Join(dir, "tls.key"),
		CA:   filepath.Join(dir, "ca.crt"),
	}
}

func load(t *testing.T, issued Issued) *Source {
	t.Helper()
	f := files(t.TempDir())
	must.Do(t, issued.WriteFiles(f))
	return must.Get(Load(f, nil))(t)
}

func parseIDs(t *testing.T, texts []string) (ids []federation.ID) {
	t.Helper()
	for _, text := range texts {
		id := must.Get(federation.ParseID(text))(t)
		ids = append(ids, id)
	}
	return ids
}

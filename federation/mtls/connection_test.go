package mtls

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// link is a connection of a consumer with an owner, after the handshake.
type link struct {
	client, server  net.Conn
	owner, consumer Peer // as the other one sees it
	close           func()
}

func connect(t *testing.T, client, server *Source, ids ...federation.ID) link {
	t.Helper()
	a, b := net.Pipe()
	var l link
	var serverErr error
	var serving sync.WaitGroup
	serving.Go(func() {
		var info credentials.AuthInfo
		if l.server, info, serverErr = server.Server().ServerHandshake(b); serverErr == nil {
			l.consumer, _ = PeerOf(info)
			serverErr = exchange(l.server)
		}
	})
	var info credentials.AuthInfo
	var err error
	if l.client, info, err = client.Client("owner.example", ids).Clone().ClientHandshake(context.Background(), "ignored.example", a); err == nil {
		l.owner, _ = PeerOf(info)
		err = exchange(l.client)
	}
	serving.Wait()
	if err = errors.Join(err, serverErr); err != nil {
		t.Fatal(err)
	}
	l.close = func() {
		a.Close() // first: else TLS says goodbye, and waits for a reader of it
		l.client.Close()
		l.server.Close()
	}
	t.Cleanup(l.close)
	return l
}

// works fails unless the connection is open in both directions.
func (l link) works(t *testing.T, when string) {
	t.Helper()
	var serving sync.WaitGroup
	var serverErr error
	serving.Go(func() { serverErr = exchange(l.server) })
	if err := exchange(l.client); err != nil {
		t.Errorf("%s: the connection is closed: %v", when, err)
	}
	serving.Wait()
	if serverErr != nil {
		t.Errorf("%s: the connection is closed: %v", when, serverErr)
	}
}

// ends fails unless the connection was closed for a reason by the side whose end is own.
func ends(t *testing.T, own, other net.Conn, reason error, when string) {
	t.Helper()
	if _, err := own.Read(make([]byte, 1)); !errors.Is(err, reason) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%s: the end that closes reads %v, expected %v", when, err, reason)
	}
	if n, err := other.Read(make([]byte, 1)); err == nil {
		t.Errorf("%s: the other end reads %d bytes", when, n)
	}
}

// renew returns the authority with a certificate of its own for the same key, from
// now on.
func renew(t *testing.T, old *Authority, lifetime time.Duration) *Authority {
	t.Helper()
	template := *old.certificate
	template.NotBefore, template.NotAfter = time.Now(), time.Now().Add(lifetime)
	der := must.Get(x509.CreateCertificate(rand.Reader, &template, &template, &old.key.PublicKey, old.key))(t)
	certificate := must.Get(x509.ParseCertificate(der))(t)
	return &Authority{certificate, old.key}
}

// TestConnectionEndsWithItsAuthority rotates an authority in the usual order, at
// either end: the new one joins the bundle, the leaves get new certificates, time
// passes until the old leaves have expired, and the old one leaves the bundle. Within the
// grace only that ends the connections that were made with the old leaf, and no others.
func TestConnectionEndsWithItsAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := renew(t, newAuthority(t), 3*time.Hour), newAuthority(t)
		bundle := join(oldCA.PEM(), newCA.PEM())
		signed := func(a *Authority, ca []byte) Issued {
			issued := issue(t, a, Leaf{DNSNames: []string{"owner.example"}, Lifetime: 3 * time.Hour})
			issued.CA = ca
			return issued
		}
		replace := func(s *Source, issued Issued) {
			t.Helper()
			must.Do(t, issued.WriteFiles(s.origin.files))
			changed := s.Changed()
			s.Reload()
			if !closed(changed) {
				t.Fatal("the files are not taken")
			}
		}
		owner, consumer := load(t, signed(oldCA, oldCA.PEM())), load(t, signed(oldCA, oldCA.PEM()))
		old := []link{connect(t, consumer, owner), connect(t, consumer, owner)}
		all := func(when string, links ...link) {
			t.Helper()
			for _, l := range links {
				l.works(t, when)
			}
		}
		for _, s := range []*Source{owner, consumer} {
			replace(s, signed(oldCA, bundle))
			all("with both authorities", old...)
		}
		time.Sleep(time.Hour)
		for _, s := range []*Source{owner, consumer} {
			replace(s, signed(newCA, bundle))
			all("with new leaves", old...)
		}
		young := connect(t, consumer, owner)
		time.Sleep(time.Until(old[0].owner.Expiry()) + time.Second) // the old leaves and the old authority have expired
		all("after the expiry of the old leaves", append(old, young)...)

		newCA = renew(t, newCA, 48*time.Hour)
		replace(consumer, signed(newCA, newCA.PEM()))
		for _, l := range old {
			ends(t, l.client, l.server, errDistrusted, "without the old authority")
		}
		all("without the old authority", young)
		// The owner has closed connections before, and has one to judge.
		for _, l := range old {
			l.server.Close()
		}
		replace(owner, signed(newCA, newCA.PEM()))
		all("with the renewed authority", young)
		for name, s := range map[string]*Source{"owner": owner, "consumer": consumer} {
			if n := len(s.open); n != 1 {
				t.Errorf("%s remembers %d connections, expected 1", name, n)
			}
		}

		// At the other end, and for a connection that waits for nothing.
		third := newAuthority(t)
		issued := signed(newCA, third.PEM())
		replace(owner, issued)
		ends(t, young.server, young.client, errDistrusted, "without the authority of the consumer")
		young.client.Close()
		for name, s := range map[string]*Source{"owner": owner, "consumer": consumer} {
			if n := len(s.open); n != 0 {
				t.Errorf("%s remembers %d connections, expected none", name, n)
			}
		}
	})
}

// A handshake that lets a peer in without a certificate makes no connection.
func TestPeerWithoutCertificate(t *testing.T) {
	owner, _, _ := parties(t, time.Hour, time.Hour)
	c, info, err := owner.Server().(guardedCredentials).guardHandshake(nil, func(c net.Conn, _ *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		return c, credentials.TLSInfo{}, nil
	})
	if err == nil || c != nil || info != nil || open(owner) != 0 {
		t.Errorf("%v, %v, %v, and %d connections are open", c, info, err, open(owner))
	}
}

// A handshake that overlaps with the replacement is judged by the new material.
func TestAuthorityIsReplacedDuringTheHandshake(t *testing.T) {
	oldCA, newCA := newAuthority(t), newAuthority(t)
	owner, consumer := load(t, issue(t, oldCA, Leaf{DNSNames: []string{"owner.example"}})), load(t, issue(t, oldCA, Leaf{}))
	next := load(t, issue(t, newCA, Leaf{}))
	a, b := net.Pipe()
	defer b.Close()
	var serving sync.WaitGroup
	serving.Go(func() { _, _, _ = owner.Server().ServerHandshake(b) })
	guarding, _ := consumer.Client("owner.example", nil).(guardedCredentials)
	_, _, err := guarding.guardHandshake(a, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		conn, info, err := credentials.NewTLS(config).ClientHandshake(context.Background(), "ignored.example", c)
		consumer.replaceMaterial(next.material.Load())
		return conn, info, err
	})
	serving.Wait()
	if !errors.Is(err, errDistrusted) {
		t.Errorf("the handshake gave %v, expected %v", err, errDistrusted)
	}
	if n := len(consumer.open); n != 0 {
		t.Errorf("%d connections are remembered", n)
	}
}

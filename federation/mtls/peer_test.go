package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// parties returns an owner and a consumer of one authority with certificates of such a
// lifetime, and what gives one of them a new certificate.
func parties(t *testing.T, owners, consumers time.Duration) (owner, consumer *Source, rotate func(*Source, time.Duration)) {
	t.Helper()
	authority := newAuthority(t)
	leaf := func(lifetime time.Duration) Leaf {
		return Leaf{DNSNames: []string{"owner.example"}, URIs: []string{"spiffe://example.org/owner"}, Lifetime: time.Hour + lifetime}
	}
	rotate = func(s *Source, lifetime time.Duration) {
		t.Helper()
		must.Do(t, issue(t, authority, leaf(lifetime)).WriteFiles(s.files))
		changed := s.Changed()
		s.Reload()
		if !closed(changed) {
			t.Fatal("the files are not taken")
		}
	}
	return load(t, issue(t, authority, leaf(owners))), load(t, issue(t, authority, leaf(consumers))), rotate
}

// open returns of how many connections the sources know.
func open(sources ...*Source) (n int) {
	for _, s := range sources {
		s.connections.mu.Lock()
		n += len(s.connections.open)
		s.connections.mu.Unlock()
	}
	return n
}

// A connection ends the grace after the certificate of the peer has expired, and not
// before; the side whose own certificate has expired leaves it to the other.
func TestConnectionEndsWithItsCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		owner, consumer time.Duration // lifetimes
		grace           func(owner, consumer *Source)
		after           time.Duration
		by              func(link) (own, other net.Conn)
	}{
		"consumer's, at the owner": {
			owner: 20 * time.Hour, consumer: time.Hour, after: time.Hour + DefaultGrace,
			by: func(l link) (own, other net.Conn) { return l.server, l.client },
		},
		"owner's, at the consumer": {
			owner: time.Hour, consumer: 20 * time.Hour, after: time.Hour + DefaultGrace,
			by: func(l link) (own, other net.Conn) { return l.client, l.server },
		},
		"without grace": {
			owner: time.Hour, consumer: 2 * time.Hour, after: time.Hour,
			grace: func(_, consumer *Source) { consumer.SetGrace(-time.Second) },
			by:    func(l link) (own, other net.Conn) { return l.client, l.server },
		},
		"grace that shrinks": {
			owner: 20 * time.Hour, consumer: time.Hour, after: time.Hour + time.Second,
			grace: func(owner, _ *Source) { owner.SetGrace(time.Second) },
			by:    func(l link) (own, other net.Conn) { return l.server, l.client },
		},
		"grace that grows": {
			owner: time.Hour, consumer: time.Hour, after: 2 * time.Hour,
			grace: func(owner, consumer *Source) { owner.SetGrace(time.Hour); consumer.SetGrace(3 * time.Hour) },
			by:    func(l link) (own, other net.Conn) { return l.server, l.client },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				owner, consumer, _ := parties(t, tc.owner, tc.consumer)
				l := connect(t, consumer, owner)
				if tc.grace != nil {
					tc.grace(owner, consumer)
				}
				if until := time.Now().Add(tc.owner); !l.owner.Until().Equal(until) || !l.consumer.OwnUntil().Equal(until) {
					t.Errorf("the owner's certificate expires at %v, or %v by itself, expected %v", l.owner.Until(), l.consumer.OwnUntil(), until)
				}
				time.Sleep(tc.after - time.Second)
				synctest.Wait()
				l.works(t, "before the end")
				time.Sleep(time.Second)
				synctest.Wait()
				own, other := tc.by(l)
				_ = own.SetReadDeadline(time.Now()) // a Read of a connection that is still open would wait for its end
				ends(t, own, other, errExpired, "at the end")
				other.Close()
				if n := open(owner, consumer); n != 0 {
					t.Errorf("%d connections are remembered", n)
				}
			})
		})
	}
}

// A later handshake of the same identities vouches for the connection: its certificate
// is the one whose expiry counts, and its authority the one that must be trusted.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, consumer, rotate := parties(t, time.Hour, time.Hour)
		l := connect(t, consumer, owner)
		start := time.Now()
		for range 10 {
			time.Sleep(50 * time.Minute)
			rotate(owner, time.Hour)
			rotate(consumer, time.Hour)
			later := connect(t, consumer, owner)
			for _, err := range []error{l.owner.Renew(later.owner), l.consumer.Renew(later.consumer)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			later.close()
			if until := time.Now().Add(time.Hour); !l.owner.Until().Equal(until) || !l.owner.OwnUntil().Equal(until) || !l.consumer.Until().Equal(until) {
				t.Errorf("the connection is vouched for until %v, expected %v", l.owner.Until(), until)
			}
			synctest.Wait()
			l.works(t, "after "+time.Since(start).String())
		}
		time.Sleep(time.Hour + DefaultGrace - time.Second)
		synctest.Wait()
		l.works(t, "in the last second")
		time.Sleep(time.Second)
		synctest.Wait()
		if err := l.owner.Renew(l.owner); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed connection is renewed: %v", err)
		}
	})
}

// An earlier handshake takes nothing from a connection.
func TestRenewByAnEarlierHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, consumer, rotate := parties(t, time.Hour, time.Hour)
		early := connect(t, consumer, owner)
		time.Sleep(time.Minute)
		rotate(owner, 3*time.Hour)
		l := connect(t, consumer, owner)
		until := l.owner.Until()
		if err := l.owner.Renew(early.owner); err != nil || !l.owner.Until().Equal(until) {
			t.Errorf("the connection is vouched for until %v, expected %v: %v", l.owner.Until(), until, err)
		}
	})
}

// The authority of the later handshake is the one that counts from then on.
func TestRenewedConnectionIsJudgedByItsNewAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newAuthority(t), newAuthority(t)
		both := join(oldCA.PEM(), newCA.PEM())
		signed := func(a *Authority, ca []byte) Issued {
			issued := issue(t, a, Leaf{DNSNames: []string{"owner.example"}})
			issued.CA = ca
			return issued
		}
		replace := func(s *Source, issued Issued) {
			t.Helper()
			must.Do(t, issued.WriteFiles(s.files))
			s.Reload()
		}
		owner, consumer := load(t, signed(oldCA, both)), load(t, signed(oldCA, both))
		renewed, left := connect(t, consumer, owner), connect(t, consumer, owner)
		time.Sleep(time.Second)
		replace(owner, signed(newCA, both))
		later := connect(t, consumer, owner)
		must.Do(t, renewed.owner.Renew(later.owner))
		replace(consumer, signed(oldCA, newCA.PEM()))
		renewed.works(t, "without the old authority")
		ends(t, left.client, left.server, errDistrusted, "without the old authority")

		// A handshake whose authority has gone meanwhile vouches for nothing.
		gone := connect(t, consumer, owner)
		third := newAuthority(t)
		replace(consumer, signed(oldCA, third.PEM()))
		ends(t, renewed.client, renewed.server, errDistrusted, "without the new authority")
		replace(owner, signed(third, both))
		last := connect(t, consumer, owner)
		if err := last.owner.Renew(gone.owner); !errors.Is(err, errDistrusted) {
			t.Errorf("a handshake of an authority that is not trusted vouches for another connection: %v", err)
		}
		last.works(t, "after the failure")
	})
}

func TestRenewErrors(t *testing.T) {
	authority := newAuthority(t)
	of := func(leaf Leaf) *Source { return load(t, issue(t, authority, leaf)) }
	owner := of(Leaf{DNSNames: []string{"owner.example"}})
	a, b := Leaf{URIs: []string{"spiffe://example.org/a"}, DNSNames: []string{"a.example"}}, Leaf{URIs: []string{"spiffe://example.org/b"}}
	more := Leaf{URIs: a.URIs, DNSNames: []string{"a.example", "b.example"}}
	nobody, other := Leaf{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Leaf{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	for name, tc := range map[string]struct {
		before, after Leaf
		want          error
	}{
		"same identities":            {a, a, nil},
		"same without identities":    {nobody, nobody, nil},
		"another identity":           {a, b, errOtherIdentity},
		"one more":                   {a, more, errOtherIdentity},
		"one less":                   {more, a, errOtherIdentity},
		"other without identities":   {nobody, other, errOtherIdentity},
		"identities where were none": {nobody, a, errOtherIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := connect(t, of(tc.before), owner), connect(t, of(tc.after), owner)
			if err := before.consumer.Renew(after.consumer); !errors.Is(err, tc.want) {
				t.Errorf("got %v, expected %v", err, tc.want)
			}
			before.works(t, "after Renew")
		})
	}
	l := connect(t, of(a), owner)
	otherOwner := connect(t, of(a), of(Leaf{DNSNames: []string{"owner.example"}}))
	both := connect(t, owner, owner)
	for name, pair := range map[string][2]Peer{
		"another source":              {l.consumer, otherOwner.consumer},
		"another role":                {both.consumer, both.owner},
		"of other credentials":        {{TLSInfo: l.consumer.TLSInfo}, l.consumer},
		"by one of other credentials": {l.consumer, {TLSInfo: l.consumer.TLSInfo}},
	} {
		if err := pair[0].Renew(pair[1]); !errors.Is(err, errOtherSource) {
			t.Errorf("%s: got %v, expected %v", name, err, errOtherSource)
		}
	}
}

func TestPeerOf(t *testing.T) {
	authority := newAuthority(t)
	leaf := Leaf{DNSNames: []string{"owner.example"}, URIs: []string{"spiffe://example.org/owner"}}
	source := load(t, issue(t, authority, leaf))
	l := connect(t, source, source)
	certificate := l.owner.State.PeerCertificates[0]
	bare := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}
	want := parseIDs(t, []string{"spiffe://example.org/owner", "owner.example"})
	for name, tc := range map[string]struct {
		info credentials.AuthInfo
		ok   bool
		ids  []federation.ID
	}{
		"of a source":               {l.owner, true, want},
		"of other credentials":      {bare, true, want},
		"without a certificate":     {credentials.TLSInfo{}, false, nil},
		"of something else":         {nil, false, nil},
		"with an empty certificate": {credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}, true, nil},
	} {
		p, ok := PeerOf(tc.info)
		if ok != tc.ok || !slices.Equal(p.IDs(), tc.ids) {
			t.Errorf("%s: %v, %v, expected %v, %v", name, p.IDs(), ok, tc.ids, tc.ok)
		}
	}
	p, _ := PeerOf(bare)
	if !p.Until().Equal(certificate.NotAfter) || !p.OwnUntil().IsZero() {
		t.Errorf("a peer of other credentials is valid until %v, %v", p.Until(), p.OwnUntil())
	}
	if none, _ := PeerOf(nil); !none.Until().IsZero() {
		t.Errorf("nobody is valid until %v", none.Until())
	}
	if l.owner.AuthType() != "tls" || l.owner.SecurityLevel != credentials.PrivacyAndIntegrity {
		t.Errorf("gRPC is told of %s, %v", l.owner.AuthType(), l.owner.SecurityLevel)
	}
}

// Renew, Close, a change of the authorities, a change of the grace and the timer may
// happen at once. Nothing is left of the connections then.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, consumer, rotate := parties(t, time.Hour, time.Hour)
		for round := range 20 {
			l := connect(t, consumer, owner)
			later := connect(t, consumer, owner)
			time.Sleep(time.Hour + DefaultGrace) // the timers fire now
			var all sync.WaitGroup
			all.Go(func() { _ = l.owner.Renew(later.owner) })
			all.Go(func() { _ = l.consumer.Renew(later.consumer) })
			all.Go(func() { owner.SetGrace(DefaultGrace); consumer.SetGrace(DefaultGrace) })
			all.Go(func() { rotate(owner, time.Hour) })
			all.Go(func() {
				consumer.connections.replace(&material{certificate: consumer.material.Load().certificate, trust: trustFiles(nil), replaced: make(chan struct{})})
			})
			all.Go(func() { _ = l.owner.Until() })
			all.Go(func() { l.client.Close() })
			all.Wait()
			synctest.Wait()
			for _, c := range []net.Conn{l.client, l.server, later.client, later.server} {
				c.Close()
			}
			if n := open(owner, consumer); n != 0 {
				t.Fatalf("round %d: %d connections are remembered", round, n)
			}
			rotate(consumer, time.Hour)
		}
	})
}

// A peer that asks for the same renewal again, or for one by an older handshake, makes
// nobody verify certificates: here they would be refused.
func TestRenewAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, consumer, _ := parties(t, time.Hour, time.Hour)
		l := connect(t, consumer, owner)
		time.Sleep(time.Minute)
		older := connect(t, consumer, owner)
		time.Sleep(time.Minute)
		later := connect(t, consumer, owner)
		must.Do(t, l.owner.Renew(later.owner))
		consumer.material.Store(&material{replaced: make(chan struct{})}) // trusts nobody
		for name, by := range map[string]Peer{"same": later.owner, "older": older.owner} {
			if err := l.owner.Renew(by); err != nil {
				t.Errorf("%s handshake: %v", name, err)
			}
		}
	})
}

// BenchmarkRenewManyNames renews by a certificate with as many names as there is room for
// in a handshake, nearly.
func BenchmarkRenewManyNames(b *testing.B) {
	certificate := &x509.Certificate{}
	for i := range 30_000 {
		certificate.DNSNames = append(certificate.DNSNames, "n"+strconv.Itoa(i)+".a")
	}
	p := Peer{TLSInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}}
	for b.Loop() {
		if !p.same(p) {
			b.Fatal("a peer is not itself")
		}
	}
}

func TestPeerIDs(t *testing.T) {
	uri := func(s string) *url.URL {
		return must.Get(url.Parse(s))(t)
	}
	for name, tc := range map[string]struct {
		certificate x509.Certificate
		want        []string
	}{
		"nothing":         {},
		"names":           {x509.Certificate{DNSNames: []string{"A.example", "*.b.example", "c.example"}}, []string{"a.example", "c.example"}},
		"both":            {x509.Certificate{DNSNames: []string{"a.example"}, URIs: []*url.URL{uri("spiffe://x.example/y")}}, []string{"spiffe://x.example/y", "a.example"}},
		"other URI":       {x509.Certificate{URIs: []*url.URL{uri("https://x.example/y")}}, nil},
		"trust domain":    {x509.Certificate{URIs: []*url.URL{uri("spiffe://x.example")}}, nil},
		"two SPIFFE IDs":  {x509.Certificate{URIs: []*url.URL{uri("spiffe://x.example/y"), uri("spiffe://x.example/z")}}, nil},
		"escaped letters": {x509.Certificate{URIs: []*url.URL{uri("spiffe://x.example/%79")}}, nil},
		"subject":         {x509.Certificate{Subject: pkix.Name{CommonName: "a.example"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, id := range PeerIDs(&tc.certificate) {
				got = append(got, id.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAddressOf(t *testing.T) {
	for _, tt := range []struct {
		address net.Addr
		want    string
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6")}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::/64"},
		{&net.UnixAddr{Name: "x"}, "invalid Prefix"},
	} {
		if got := AddressOf(tt.address).String(); got != tt.want {
			t.Errorf("the address of %v is %s, expected %s", tt.address, got, tt.want)
		}
	}
}

package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
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
		must.Do(t, issue(t, authority, leaf(lifetime)).WriteFiles(s.origin.files))
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
		s.judging.Lock()
		n += len(s.open)
		s.judging.Unlock()
	}
	return n
}

// A connection ends the grace after the certificate of the peer has expired, and not
// before; the side whose own certificate has expired leaves it to the other.
func TestConnectionEndsWithItsCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		owner, consumer time.Duration // lifetimes
		by              func(link) (own, other net.Conn)
	}{
		"consumer's, at the owner": {
			owner: 20 * time.Hour, consumer: time.Hour,
			by: func(l link) (own, other net.Conn) { return l.server, l.client },
		},
		"owner's, at the consumer": {
			owner: time.Hour, consumer: 20 * time.Hour,
			by: func(l link) (own, other net.Conn) { return l.client, l.server },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				owner, consumer, _ := parties(t, tc.owner, tc.consumer)
				l := connect(t, consumer, owner)
				until := time.Now().Add(min(tc.owner, tc.consumer))
				for name, p := range map[string]Peer{"consumer": l.owner, "owner": l.consumer} {
					if !p.Expiry().Equal(until) {
						t.Errorf("to the %s, the first of the certificates expires at %v, expected %v", name, p.Expiry(), until)
					}
				}
				time.Sleep(time.Hour + grace - time.Second)
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
	if !p.Expiry().IsZero() {
		t.Errorf("with other credentials, a certificate expires at %v", p.Expiry())
	}
	if l.owner.AuthType() != "tls" || l.owner.SecurityLevel != credentials.PrivacyAndIntegrity {
		t.Errorf("gRPC is told of %s, %v", l.owner.AuthType(), l.owner.SecurityLevel)
	}
}

// Close, a change of the authorities and the timer may happen at once. Nothing is left of the connections then.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, consumer, rotate := parties(t, time.Hour, time.Hour)
		for round := range 5 {
			l := connect(t, consumer, owner)
			time.Sleep(time.Hour + grace) // the timers fire now
			var all sync.WaitGroup
			all.Go(func() { rotate(owner, time.Hour) })
			all.Go(func() {
				consumer.replaceMaterial(&tlsMaterial{certificate: consumer.material.Load().certificate, trust: trustFiles(nil), replaced: make(chan struct{})})
			})
			all.Go(func() { l.client.Close() })
			all.Wait()
			synctest.Wait()
			for _, c := range []net.Conn{l.client, l.server} {
				c.Close()
			}
			if n := open(owner, consumer); n != 0 {
				t.Fatalf("round %d: %d connections are remembered", round, n)
			}
			rotate(consumer, time.Hour)
		}
	})
}

func TestClaimedIDs(t *testing.T) {
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
			for _, id := range claimedIDs(&tc.certificate) {
				got = append(got, id.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

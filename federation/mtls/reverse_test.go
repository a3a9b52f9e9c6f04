package mtls

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var errMayNot = errors.New("it may not")

// TestReversed has an owner dial servers that know owners which dial, and others.
func TestReversed(t *testing.T) {
	authority := newAuthority(t)
	relay := load(t, issue(t, authority, Leaf{DNSNames: []string{"relay.example"}}))
	inner := load(t, issue(t, authority, Leaf{DNSNames: []string{"inner.example"}}))
	ids := []federation.ID{must.Value(federation.ParseID("relay.example"))}
	for name, tc := range map[string]struct {
		may     error // nil: it may
		unaware bool  // the server knows no owners that dial
		ids     []federation.ID
		refused string // by the server, as the owner is told; "" where it is not
		wrong   string // why the owner has no connection
	}{
		"in order":           {ids: ids},
		"may not":            {ids: ids, may: errMayNot, refused: "remote error: tls: bad certificate"},
		"unaware":            {ids: ids, unaware: true, wrong: "no application protocol"},
		"another server":     {ids: []federation.ID{must.Value(federation.ParseID("other.example"))}, wrong: "certificate is for \"relay.example\", not for [other.example]"},
		"by its server name": {},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			taken := make(chan *Reversed, 1)
			server := relay.ServerFor(func(serverName string, ids []federation.ID) error {
				if serverName != "relay.example" || len(ids) != 1 || ids[0].String() != "inner.example" {
					t.Errorf("%v asks for %q", ids, serverName)
				}
				return tc.may
			}, func(conn *Reversed) { taken <- conn })
			if tc.unaware {
				server = relay.Server()
			}
			served := make(chan error, 1)
			go func() {
				_, _, err := server.ServerHandshake(far)
				served <- err
				if !errors.Is(err, credentials.ErrConnDispatched) {
					_ = far.SetDeadline(time.Now().Add(time.Second))
					far.Close()
				}
			}()
			conn, err := inner.Dialed(t.Context(), near, "relay.example", tc.ids)
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Fatalf("dialed with %v, expected %s", err, tc.wrong)
				}
				<-served
				return
			}
			must.Do(t, err)
			defer near.Close() // TLS would wait for somebody to read its alert
			first := make(chan error, 1)
			go func() {
				_, err := conn.Read(make([]byte, 1))
				first <- err
			}()
			err = <-served
			if tc.refused != "" {
				if got := <-first; got == nil || !strings.Contains(got.Error(), tc.refused) || errors.Is(err, credentials.ErrConnDispatched) {
					t.Errorf("the owner is told %v, expected %s", got, tc.refused)
				}
				return
			}
			if !errors.Is(err, credentials.ErrConnDispatched) {
				t.Fatalf("the server says %v", err)
			}
			accepted := <-taken
			must.Get(accepted.Write([]byte("P")))(t)
			must.Do(t, <-first)
			if a, b := accepted.Peer.IDs(), conn.Peer.IDs(); len(a) != 1 || a[0].String() != "inner.example" || len(b) != 1 || b[0] != ids[0] {
				t.Errorf("the peers are %v and %v", a, b)
			}
		})
	}
}

// TestReversedServesConsumers has a consumer come to a server that owners can dial.
func TestReversedServesConsumers(t *testing.T) {
	authority := newAuthority(t)
	relay := load(t, issue(t, authority, Leaf{DNSNames: []string{"relay.example"}}))
	consumer := load(t, issue(t, authority, Leaf{DNSNames: []string{"consumer.example"}}))
	near, far := net.Pipe()
	server := relay.ServerFor(
		func(string, []federation.ID) error { t.Error("a consumer dials as an owner"); return nil },
		func(*Reversed) { t.Error("a consumer is taken for an owner") },
	)
	served := make(chan error, 1)
	go func() {
		_, info, err := server.ServerHandshake(far)
		if peer, ok := PeerOf(info); err == nil && (!ok || peer.IDs()[0].String() != "consumer.example") {
			t.Errorf("the consumer is %v", peer.IDs())
		}
		served <- err
	}()
	_, _, err := consumer.Client("relay.example", nil).ClientHandshake(context.Background(), "relay.example", near)
	must.Do(t, err)
	must.Do(t, <-served)
}

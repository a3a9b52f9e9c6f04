package owner

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// holding returns a registry with one service of that name.
func holding(tb testing.TB, name string) *registry.Registry {
	tb.Helper()
	r := registry.New()
	upsert(tb, r, service(name, 1))
	return r
}

// asking returns a connection whose handshake asks for that server name.
func (f *fixture) asking(tb testing.TB, serverName string) *grpc.ClientConn {
	tb.Helper()
	leaf := mtls.Leaf{Name: "test", URIs: []string{consumerID}}
	return f.dialAs(tb, leaf, grpc.WithTransportCredentials(f.sourceOf(tb, leaf).Client(serverName, []federation.ID{idOf(tb, ownerID)})))
}

// TestServerNameChoosesTheCatalog subscribes with server names of all kinds, where
// there is a default and where there is none.
func TestServerNameChoosesTheCatalog(t *testing.T) {
	for _, tt := range []struct {
		serverName           string
		withDefault, without string // the first event, or empty for Unavailable
	}{
		{"mesh-b.example", "upsert b 1", "upsert b 1"},
		{"Mesh-B.Example", "upsert b 1", "upsert b 1"},
		{"mesh-c.example", "upsert c 1", "upsert c 1"},
		{"mesh-d.example", "upsert default 1", ""},
		{"192.0.2.1", "upsert default 1", ""}, // is not sent
	} {
		t.Run(tt.serverName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				catalogs := map[string]*registry.Registry{"mesh-b.example": holding(t, "b"), "MESH-C.example.": holding(t, "c"), "mesh-d.example": nil}
				f := start(t, func(c *Config) { c.Registry, c.Catalogs = nil, catalogs })
				expect := func(want string) {
					t.Helper()
					c := subscribe(t, f.asking(t, tt.serverName))
					if want != "" {
						if got := c.next(); got != want {
							t.Errorf("the first event is %s, expected %s", got, want)
						}
						return
					}
					asked := tt.serverName
					if asked == "192.0.2.1" {
						asked = ""
					}
					text := fmt.Sprintf("there is no catalog for the server name %q of your handshake", asked)
					if got := c.status(); got.Code() != codes.Unavailable || got.Message() != text {
						t.Errorf("the stream ended with %v, expected Unavailable: %s", got, text)
					}
				}
				expect(tt.without)
				expect(tt.without) // is logged once
				want := 0
				if tt.without == "" {
					want = 1
				}
				if got := f.logged.Count("there is no catalog for the server name"); got != want {
					t.Errorf("logged %d times, expected %d:\n%s", got, want, f.logged)
				}
				catalogs[""] = holding(t, "default")
				f.server.SetCatalogs(catalogs)
				expect(tt.withDefault)
			})
		})
	}
}

// TestSetCatalogs replaces catalogs while a consumer has a stream for each. Only the
// streams end for whose server name there is another registry now, or none.
func TestSetCatalogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c, d := holding(t, "a"), holding(t, "b"), holding(t, "c"), holding(t, "d")
		f := start(t, func(config *Config) {
			config.Registry, config.Catalogs = nil, map[string]*registry.Registry{"": d, "a.example": a, "b.example": b, "c.example": c}
		})
		streams := make(map[string]*client)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			streams[name] = subscribe(t, f.asking(t, name+".example"))
			streams[name].nextN(2)
		}
		other, e := holding(t, "other"), holding(t, "e")
		f.server.SetCatalogs(map[string]*registry.Registry{"": d, "a.example": a, "b.example": other, "e.example": e})
		for name, r := range map[string]*registry.Registry{"a": a, "d": d} {
			upsert(t, r, service("later", 1))
			if got := streams[name].next(); got != "upsert later 1" {
				t.Errorf("%s: the next event is %s, expected upsert later 1", name, got)
			}
		}
		for _, ended := range []struct{ name, event string }{
			{"b", "upsert other 1"}, // replaced
			{"c", "upsert d 1"},     // gone: the default is there for it
			{"e", "upsert e 1"},     // had the default, and has its own now
		} {
			upsert(t, c, service("later", 1))
			if got := streams[ended.name].status(); got.Code() != codes.Unavailable || !strings.Contains(got.Message(), "has been replaced") {
				t.Errorf("%s: the stream ended with %v, expected Unavailable", ended.name, got)
			}
			if got := subscribe(t, f.asking(t, ended.name+".example")).next(); got != ended.event {
				t.Errorf("%s: the first event is %s, expected %s", ended.name, got, ended.event)
			}
		}
		for _, r := range []*registry.Registry{b, c} {
			if n := registrytest.Subscribers(r); n != 0 {
				t.Errorf("a catalog that is gone has %d subscriptions, expected none", n)
			}
		}
		f.server.SetCatalogs(nil)
		synctest.Wait()
		for _, r := range []*registry.Registry{a, d, other, e} {
			if n := registrytest.Subscribers(r); n != 0 {
				t.Errorf("a catalog that is gone has %d subscriptions, expected none", n)
			}
		}
	})
}

// TestOneCatalogIsUnavailable makes one of two catalogs unavailable, and leaves the
// streams of the other alone. Their figures and log lines are apart.
func TestOneCatalogIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := holding(t, "b")
		f := start(t, func(c *Config) {
			c.Catalogs = map[string]*registry.Registry{"": c.Registry, "b.example": b}
			c.Registry = nil
		})
		set(t, f.registry, []*federation.Service{service("a", 1), service("c", 1)})
		one, two := subscribe(t, f.asking(t, "owner")), subscribe(t, f.asking(t, "b.example"))
		one.next()
		two.nextN(2)
		synctest.Wait()
		b.SetUnavailable("away", time.Time{})
		expectUnavailable(t, two)
		if got := one.nextN(2); !cmp.Equal(got, []string{"upsert c 1", "end"}) {
			t.Errorf("the other catalog went on with %v", got)
		}
		synctest.Wait()
		stats := f.server.Stats().Catalogs
		if s := stats[""]; s.Services != 2 || s.Acknowledged != 3 || s.Consumers[0]+s.Consumers[1] != 1 || len(s.Ended) != 0 || s.Unavailable != "" {
			t.Errorf("unexpected figures of the default %+v", s)
		}
		if s := stats["b.example"]; s.Services != 1 || s.Acknowledged != 2 || len(s.Consumers) != 0 || s.Ended[codes.Unavailable] != 1 || s.Unavailable != "away" {
			t.Errorf("unexpected figures of the other %+v", s)
		}
		if all, of := f.logged.Count("consumer subscribed"), f.logged.Count("msg=\"consumer subscribed\" catalog=b.example"); all != 2 || of != 1 {
			t.Errorf("logged %d and %d subscriptions, expected 2, and 1 with its catalog:\n%s", all, of, f.logged)
		}

		// The figures of a name stay when its registry is replaced.
		f.server.SetCatalogs(map[string]*registry.Registry{"b.example": holding(t, "d")})
		stats = f.server.Stats().Catalogs
		if s := stats["b.example"]; len(stats) != 2 || s.Acknowledged != 2 || s.Unavailable != "" {
			t.Errorf("unexpected figures of the new one %+v", s)
		}
	})
}

// TestCatalogsChangeWhileConsumersCome replaces the catalog while a stream is opened. The
// stream gets the new one, or ends: none goes on with the old one.
func TestCatalogsChangeWhileConsumersCome(t *testing.T) {
	f := start(t, nil)
	conn := f.dial(t, consumerID)
	for round := range unlessShort(300, 50) {
		name := fmt.Sprintf("s%d", round)
		published := holding(t, name)
		var replaced sync.WaitGroup
		replaced.Go(func() { f.server.SetCatalogs(map[string]*registry.Registry{"": published}) })
		c := subscribe(t, conn)
		for {
			m, err := c.stream.Recv()
			if status.Code(err) == codes.Unavailable {
				break
			}
			if err != nil {
				t.Fatalf("the stream ended with %v, expected Unavailable", err)
			}
			response := m.GetResponse()
			if response.GetResourceId() == name {
				must.Do(t, c.stream.CloseSend())
				c.status()
				break
			}
			c.request(wire.Ack(response.GetNonce(), response.GetContext()))
		}
		replaced.Wait()
	}
}

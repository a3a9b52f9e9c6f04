package owner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
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
		{"Mesh-C.example", "upsert c 1", "upsert c 1"},
		{"mesh-d.example", "upsert default 1", ""},
		{"192.0.2.1", "upsert default 1", ""}, // is not sent
	} {
		t.Run(tt.serverName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				catalogs := map[string]*registry.Registry{"mesh-b.example": holding(t, "b"), "MESH-C.example.": holding(t, "c")}
				expect := func(want string) {
					t.Helper()
					f := start(t, func(c *Config) { c.Catalogs = catalogs })
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
				catalogs[""] = holding(t, "default")
				expect(tt.withDefault)
			})
		})
	}
}

// TestOneCatalogIsUnavailable makes one of two catalogs unavailable, and leaves the
// streams of the other alone. Their figures and log lines are apart.
func TestOneCatalogIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := holding(t, "b")
		f := start(t, func(c *Config) {
			c.Catalogs["b.example"] = b
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
	})
}

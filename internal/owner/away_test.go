package owner

import (
	"crypto/tls"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// comeFromElsewhere returns when a consumer was not let in that shows a certificate of another
// authority, whatever the owner asks for.
func comeFromElsewhere(t *testing.T, f *fixture) {
	t.Helper()
	issued := must.Get(must.Get(mtls.NewAuthority("other", time.Hour))(t).Issue(mtls.Leaf{Name: "test", URIs: []string{consumerID}}))(t)
	pair := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
	shows := credentials.NewTLS(&tls.Config{
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		InsecureSkipVerify:   true, // the owner is not what is tested
	})
	stream, err := rdpb.NewDiscoveryServiceClient(f.dial(t, consumerID, grpc.WithTransportCredentials(shows))).EstablishStream(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the consumer gets %v", err)
	}
}

// TestTellsWhoIsTurnedAway has consumers that do not get in, one for each reason.
func TestTellsWhoIsTurnedAway(t *testing.T) {
	for name, tt := range map[string]struct {
		configure func(*Config)
		come      func(t *testing.T, f *fixture)
		reason    gate.Reason
		rule      string // a part of it
	}{
		"unknown authority": {nil, comeFromElsewhere, gate.BadCertificate, "unknown authority"},
		"not allowed": {func(c *Config) { c.Allow = []federation.ID{idOf(t, strangerID)} }, func(t *testing.T, f *fixture) {
			subscribe(t, f.dial(t, consumerID)).status()
		}, gate.NotAllowed, "no identity that is allowed"},
		"not allowed any more": {nil, func(t *testing.T, f *fixture) {
			c := subscribe(t, f.dial(t, consumerID))
			c.next()
			f.server.SetAllow([]federation.ID{idOf(t, strangerID)})
			c.status()
		}, gate.NotAllowed, "not allowed any more"},
		"no catalog": {
			func(c *Config) { c.Catalogs = map[string]*registry.Registry{"b.example": c.Catalogs[""]} },
			func(t *testing.T, f *fixture) { subscribe(t, f.asking(t, "c.example")).status() }, gate.NoCatalog, `"c.example"`,
		},
		"queue": {nil, func(t *testing.T, f *fixture) {
			f.server.slots = semaphore.NewWeighted(0)
			set(t, f.registry, catalogOf(2*fewServices))
			subscribe(t, f.dial(t, consumerID)).status()
		}, gate.Later, "too many consumers wait"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var told []gate.TurnedAway
				f := start(t, func(c *Config) {
					c.Logger = slog.New(slog.DiscardHandler)
					c.TurnedAway = func(p gate.TurnedAway) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, p)
					}
					if tt.configure != nil {
						tt.configure(c)
					}
				})
				tt.come(t, f)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if len(told) == 0 {
					t.Fatal("nobody is turned away")
				}
				p := told[0]
				if p.Role != "consumer" || p.Address == nil || p.Reason != tt.reason || !strings.Contains(p.Rule, tt.rule) ||
					!slices.Equal(p.IDs, []federation.ID{idOf(t, consumerID)}) {
					t.Errorf("it tells of %+v", p)
				}
			})
		})
	}
}

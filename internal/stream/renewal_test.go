package stream

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// short is the shortest time for which a SPIRE server issues a certificate.
const short = time.Minute

// as makes the party the consumer of the configuration.
func as(p *pki.Party, config *Config) {
	config.Identity = p.As(mtls.Consumer{ServerName: "owner.example"})
}

// publisher is a real owner of one replica.
type publisher struct {
	*owner.Server
	registry *registry.Registry
}

// publish runs a real owner, whose certificate is that of the simulation.
func (sim *testConsumer) publish(address string) publisher {
	sim.Helper()
	registry := registry.New()
	server, _ := sim.Publish(address, registry)
	return publisher{server, registry}
}

// upsert publishes the service.
func (p publisher) upsert(t *testing.T, name string) {
	t.Helper()
	service := upsert(name).Service
	service.SANs = []string{"spiffe://owner.example/" + name} // which v1alpha1 requires
	must.Get(p.registry.Upsert(service))(t)
}

// streams returns how many streams are open, and how many have ended with each code.
func (p publisher) streams() (open int, ended map[codes.Code]int) {
	stats := p.Stats().Catalogs[""]
	for _, n := range stats.Consumers {
		open += n
	}
	ended = make(map[codes.Code]int)
	for code, n := range stats.Ended {
		ended[code] += int(n)
	}
	return open, ended
}

// renewals fails unless so many streams were opened, each of which this side has ended but for
// the last.
func (sim *testConsumer) renewals(least, most int) {
	sim.Helper()
	n := len(sim.Records("opened"))
	if n < least || n > most {
		sim.Errorf("%d streams were opened, want %d to %d", n, least, most)
	}
	for _, what := range []string{"lost", "ended"} {
		details := sim.Details(what)
		want := map[string]string{"lost": errRenewed.Error(), "ended": codes.OK.String()}[what]
		if len(details) != n-1 || slices.ContainsFunc(details, func(got string) bool { return got != want }) {
			sim.Errorf("%s %q, want %d times %q", what, details, n-1, want)
		}
	}
}

// The certificates of both sides are replaced three times, each minute. Each new one of the consumer
// is shown at once, on one stream more, and with that it sees the newest of the owner.
func TestRenewal(t *testing.T) {
	const lifetime, replaced = 2 * time.Minute, time.Minute
	for _, version := range []wire.APIVersion{wire.V1Alpha2, wire.V1Alpha1} {
		t.Run(version.String(), func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				own, other := sim.Party("consumer.example", lifetime), sim.Party("owner.example", lifetime)
				p := sim.publish(ownerAddress)
				config := sim.config()
				as(own, &config)
				config.Version = version
				sim.run(config)
				for i := range 3 {
					p.upsert(t, fmt.Sprint("s", i))
					time.Sleep(replaced / 2)
					if applied := sim.Details("applied"); !slices.Contains(applied, fmt.Sprint("upsert s", i)) {
						t.Errorf("s%d is missing: %q", i, applied)
					}
					other.Replace(lifetime)
					time.Sleep(replaced / 2)
					own.Replace(lifetime)
					time.Sleep(time.Second)
					sim.renewals(i+2, i+2)
				}
				open, ended := p.streams()
				if open != 1 || len(ended) != 1 || ended[codes.OK] != 3 {
					t.Errorf("the owner has %d streams, and %v have ended; want one, and three that were closed", open, ended)
				}
				if n := len(sim.Records("dialed")); n != 4 {
					t.Errorf("%d connections", n)
				}
				if n := p.Stats().Connections; n != 1 {
					t.Errorf("%d connections are open, want 1", n)
				}
			})
		})
	}
}

// Only the owner's certificate is replaced: it is seen shortly before the one expires that was
// shown, on one stream more for each.
func TestRenewalForOwnersCertificate(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		other := sim.Party("owner.example", time.Hour)
		sim.publish(ownerAddress).upsert(t, "a")
		config := sim.config()
		as(sim.Party("consumer.example", 100*time.Hour), &config)
		sim.run(config)
		for range 6 {
			time.Sleep(30 * time.Minute)
			other.Replace(time.Hour)
		}
		sim.renewals(3, 7)
	})
}

// A certificate that is not replaced costs one stream. The next one goes on until the connection
// ends with the certificate. A new one is tried as soon as it is there.
func TestCertificateExpires(t *testing.T) {
	for _, consumers := range []bool{true, false} {
		t.Run(fmt.Sprint("of the consumer: ", consumers), func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				own, other := sim.Party("consumer.example", time.Hour), sim.Party("owner.example", time.Hour)
				late := other
				if consumers {
					late = own
				}
				late.Replace(short)
				sim.publish(ownerAddress).upsert(t, "a")
				config := sim.config()
				as(own, &config)
				sim.run(config)
				ends := short + time.Minute                              // which mtls leaves a connection
				time.Sleep(ends - time.Since(sim.Start) - 2*time.Second) // certificates have whole seconds
				sim.renewals(2, 2)
				time.Sleep(4 * time.Second)
				if lost := sim.Details("lost"); len(lost) < 2 {
					t.Errorf("lost %q, want the stream to end with the certificate", lost)
				}
				late.Replace(time.Hour)
				time.Sleep(6 * time.Minute)
				if n := len(sim.Records("opened")); n != 3 {
					t.Errorf("%d streams were opened, want another one", n)
				}
			})
		})
	}
}

// An owner of another kind, which sends the whole catalog again, gets the next stream when a
// certificate is about to expire: one for each life of it.
func TestForeignOwner(t *testing.T) {
	const lifetime = time.Hour
	marked := func(handler handler) handler {
		return func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SendHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
				return err
			}
			return handler(stream)
		}
	}
	const early = lifetime / 4
	for name, tc := range map[string]struct {
		handler     handler
		least, most time.Duration // until the next stream
	}{
		"marks the end":   {marked(good), early, early + time.Second},
		"of another kind": {good, lifetime - 2*lastCall, lifetime - lastCall + time.Second}, // a certificate is valid for the whole of its last second
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.secure()
				own := sim.Party("consumer.example", lifetime)
				sim.serve(ownerAddress, tc.handler)
				config := sim.config()
				as(own, &config)
				sim.run(config)
				time.Sleep(early)
				own.Replace(10 * lifetime)
				time.Sleep(lifetime - 2*time.Second - time.Since(sim.Start))
				if opened := sim.Records("opened"); len(opened) != 2 || opened[1].At < tc.least-2*time.Second || opened[1].At > tc.most {
					t.Errorf("streams were opened at %v, want the other after %v to %v", opened, tc.least, tc.most)
				}
				sim.renewals(2, 2)
			})
		})
	}
}

// No stream takes the place of one that has not brought the whole catalog, nor of one that has
// just been opened.
func TestRenewalWaits(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.Party("owner.example", time.Hour)
		p := sim.publish(ownerAddress)
		config := sim.config()
		as(sim.Party("consumer.example", time.Hour), &config)
		sim.incomplete.Store(true)
		c, _ := sim.run(config)
		time.Sleep(2 * minAge)
		c.RenewStream()
		time.Sleep(time.Minute)
		sim.renewals(1, 1)
		sim.incomplete.Store(false)
		p.upsert(t, "a")
		time.Sleep(minAge / 2)
		sim.renewals(2, 2)
		c.RenewStream()
		synctest.Wait()
		sim.renewals(2, 2)
		time.Sleep(minAge)
		sim.renewals(3, 3)
	})
}

// The consumers of an owner see the same certificate, and do not all come at once.
func TestLead(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		365 * 24 * time.Hour: lastCall, time.Hour: lastCall, 8 * time.Minute: lastCall, time.Minute: 7500 * time.Millisecond, 0: 0, -time.Minute: 0,
	} {
		least, most := time.Hour, time.Duration(0)
		for range 1000 {
			got := leadTime(left)
			least, most = min(least, got), max(most, got)
		}
		if least < want || most > 2*want || least > want*11/10 || most < want*19/10 {
			t.Errorf("with %v left: %v to %v, want %v to %v", left, least, most, want, 2*want)
		}
	}
}

package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// writer runs an agent with one block and its owners, which are not subscribed to,
// until the test ends.
func writer(tb testing.TB, names ...string) (*Agent, *Block, []*mirroredOwner) {
	tb.Helper()
	a := New(Config{Logger: slog.New(slog.DiscardHandler)})
	var config BlockConfig
	origin := must.Get(federation.ParseFQDN("fed.example"))(tb)
	for _, name := range names {
		config.AddOwner(OwnerConfig{
			Name: name, Subscription: consumer.Subscription{Addresses: []string{name + ":8008"}, Identity: mtls.Consumer{}},
			Rules: catalog.Rules{Retention: time.Hour, Settle: 5 * time.Second},
		}, zone.Owner{Origins: []federation.FQDN{origin}, TTL: 60, NegativeTTL: 5})
	}
	b := a.newBlock(config)
	for i := range config.Owners {
		c := &config.Owners[i]
		o := must.Get(a.newOwner(c, c.Subscription))(tb)
		b.owners = append(b.owners, o)
		o.joinBlock(&publishingBlock{block: b, index: i, owner: o})
	}
	a.changeZones(func() { a.blocks = []*Block{b} })
	return a, b, b.owners
}

// large returns a service with as many endpoints and labels of them as an owner may
// publish, all of which change with the number.
func large(tb testing.TB, name string, n int) *federation.Service {
	tb.Helper()
	fqdn := must.Get(federation.ParseFQDN(name + ".fed.example"))(tb)
	s := &federation.Service{Name: name, FQDN: fqdn}
	for i := range 1000 {
		address := must.Get(federation.ParseAddress(fmt.Sprintf("10.%d.%d.%d", n%200, i/250, i%250+1)))(tb)
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 443, Labels: []string{fmt.Sprint("l", i)}})
		s.Instances = append(s.Instances, federation.Instance{
			ID: fmt.Sprint("v", i), Protocol: federation.HTTPS, EndpointSelector: []string{fmt.Sprint("l", i)},
		})
	}
	return s
}

// upsert returns the change of a mirror that has one service, or a new version of it.
func upsert(services ...*federation.Service) consumer.Changes {
	changes := consumer.Changes{Status: consumer.Status{Summary: catalog.Summary{State: catalog.Synced, Generation: 1, Live: 1, Known: true}}}
	for _, s := range services {
		changes.Services = append(changes.Services, catalog.Change{Name: s.Name, Packed: packed.PackService(s), Generation: 1})
	}
	return changes
}

// publisher returns what publishes services of an owner, each in the place of the version before.
func publisher(o *mirroredOwner) func(services ...*federation.Service) {
	before := make(map[string]packed.Service)
	return func(services ...*federation.Service) {
		changes := upsert(services...)
		for i := range changes.Services {
			c := &changes.Services[i]
			c.Was, before[c.Name] = before[c.Name], c.Packed
		}
		o.publishChanges(changes)
	}
}

// firstAddress returns the first address of a name.
func firstAddress(b *Block, name string) string {
	result := b.Zone().Lookup(name, dns.TypeA, time.Now())
	if result.Kind != zone.Success {
		return ""
	}
	var all []string
	for _, rr := range reply.AppendAnswer(nil, &result, name, 0) {
		all = append(all, rr.(*dns.A).A.String())
	}
	slices.Sort(all)
	return all[0]
}

// TestPublishReturnsWhenQueriesSee: what the mirror acknowledges next is visible.
func TestPublishReturnsWhenQueriesSee(t *testing.T) {
	t.Parallel()
	_, b, owners := writer(t, "a")
	publish := publisher(owners[0])
	for i := range 5 {
		publish(large(t, "web", i))
		if got, want := firstAddress(b, "web.fed.example."), fmt.Sprintf("10.%d.0.1", i); got != want {
			t.Fatalf("web is %q when %q is acknowledged", got, want)
		}
	}
}

// TestReadWhileAttaching reads a catalog when another block has joined its owner, and has
// not been published yet.
func TestReadWhileAttaching(t *testing.T) {
	t.Parallel()
	a, b, owners := writer(t, "a")
	owners[0].publishChanges(upsert(large(t, "web", 0)))
	owners[0].joinBlock(&publishingBlock{block: a.newBlock(b.config), owner: owners[0]})
	a.owners.Store(&owners)
	n := 0
	for _, err := range a.Catalog(owners[0].id) {
		must.Do(t, err)
		n++
	}
	if n != 1 {
		t.Errorf("%d services, want 1", n)
	}
}

// TestPublishedThenAnnounced looks at the status from within what several owners have written,
// and behind it: a conflict is in the status when it is published, and not before.
func TestPublishedThenAnnounced(t *testing.T) {
	t.Parallel()
	a, b, owners := writer(t, "a", "b")
	for i, o := range owners {
		a.changeZones(func() {
			o.status = upsert().Status.Summary
			for _, name := range []string{"same", string(rune('c' + i))} {
				p := packed.PackService(large(t, name, 0))
				b.builder.Put(b.builder.Prepare((*o.members.Load())[0].index, p, p.Unpack()), packed.Service{}, 1, 0)
			}
			if conflicts := owners[1].reportStatus(time.Now()).Conflicts; len(conflicts) > 0 {
				t.Errorf("conflicts %v are announced before they are published", conflicts)
			}
		})
		if name := string(rune('c' + i)); firstAddress(b, name+".fed.example.") == "" {
			t.Errorf("%s is not published", name)
		}
	}
	if conflicts := owners[1].reportStatus(time.Now()).Conflicts; len(conflicts) != 1 {
		t.Errorf("conflicts in the end: %v", conflicts)
	}
}

// TestServicesAreCompiledBesideTheWriter compiles many services while the writer is held up.
func TestServicesAreCompiledBesideTheWriter(t *testing.T) {
	t.Parallel()
	a, b, owners := writer(t, "a")
	var all []*federation.Service
	for i := range 3 * leastTogether {
		all = append(all, services.At(fmt.Sprintf("s%d.fed.example", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
	}
	changes := upsert(all...)
	a.writing.Lock()
	offers := owners[0].prepareServices(*owners[0].members.Load(), changes.Services)
	a.writing.Unlock()
	owners[0].publishChanges(changes)
	for i := range all {
		if want := fmt.Sprintf("10.0.%d.%d", i/250, i%250); len(offers[i]) != 1 || firstAddress(b, fmt.Sprintf("s%d.fed.example.", i)) != want {
			t.Fatalf("service %d has %d offers, and is not %s", i, len(offers[i]), want)
		}
	}
}

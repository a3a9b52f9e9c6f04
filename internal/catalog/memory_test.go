package catalog_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// memoryFactor is how many octets of memory Size promises for each that it counts, at most.
const memoryFactor = 2

// TestMemory measures what docs/operating.md says of the memory of an owner: a catalog and the
// zone that publishes it take at most two octets for each that Size counts,
// whatever the services are like. Size does not count far more than they take, and
// the factor is not larger than it has to be.
func TestMemory(t *testing.T) {
	many := func(n int, s string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(s, i)
		}
		return list
	}
	endpoints := func(n int, change func(e *typespb.FederatedService_Endpoint, i int)) []*typespb.FederatedService_Endpoint {
		list := make([]*typespb.FederatedService_Endpoint, n)
		for i := range list {
			list[i] = &typespb.FederatedService_Endpoint{Address: fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250), Port: 443}
			if change != nil {
				change(list[i], i)
			}
		}
		return list
	}
	instances := func(n int, change func(in *typespb.FederatedService_Instance, i int)) []*typespb.FederatedService_Instance {
		list := make([]*typespb.FederatedService_Instance, n)
		for i := range list {
			list[i] = &typespb.FederatedService_Instance{Id: fmt.Sprintf("v%d", i), Protocol: "HTTPS"}
			if change != nil {
				change(list[i], i)
			}
		}
		return list
	}
	type fed = typespb.FederatedService
	const least = 30 // octets of memory for a hundred that are counted: shared lists count each time
	most := 0.0      // octets of memory for one that is counted
	for _, tt := range []struct {
		name     string
		services int
		fill     func(m *fed, i int)
	}{
		{"one endpoint", 2_000, func(*fed, int) {}},
		{"three endpoints, two instances", 2_000, func(m *fed, _ int) {
			m.Description, m.Tags, m.Labels = "Web", []string{"a", "b"}, map[string]string{"app": "web"}
			m.Endpoints = endpoints(3, func(e *typespb.FederatedService_Endpoint, i int) { e.Labels = []string{[]string{"eu", "us", "us"}[i]} })
			m.Instances = instances(2, func(in *typespb.FederatedService_Instance, i int) {
				in.EndpointSelector, in.Metadata = []string{[]string{"eu", "us"}[i]}, map[string]string{"HOSTNAME": "web.int", "PORT": "80"}
			})
		}},
		{"64 labels of their own at 1,000 endpoints", 4, func(m *fed, i int) {
			m.Endpoints = endpoints(1000, func(e *typespb.FederatedService_Endpoint, j int) {
				e.Labels = many(64, fmt.Sprintf("%c%c%%d", 'a'+i, 'A'+j))
			})
		}},
		{"1,000 instances that pick 500 of 1,000 endpoints", 10, func(m *fed, _ int) {
			m.Endpoints = endpoints(1000, func(e *typespb.FederatedService_Endpoint, i int) {
				e.Labels = []string{"all", []string{"a", "b"}[i%2]}[i/999%2:]
			})
			m.Instances = instances(1000, func(in *typespb.FederatedService_Instance, _ int) { in.EndpointSelector = []string{"a"} })
		}},
		{"64 pairs of metadata at 1,000 instances", 4, func(m *fed, _ int) {
			pairs := make(map[string]string)
			for i := range 64 {
				pairs[strconv.Itoa(i)] = ""
			}
			m.Instances = instances(1000, func(in *typespb.FederatedService_Instance, _ int) { in.Metadata = pairs })
		}},
		{"hosts with long names", 10, func(m *fed, i int) {
			m.Endpoints = endpoints(1000, func(e *typespb.FederatedService_Endpoint, j int) {
				e.Address = fmt.Sprintf("%s.h%d-%d.example", strings.Repeat("a", 60), i, j)
			})
		}},
		{"instance IDs in upper case", 10, func(m *fed, _ int) {
			m.Instances = instances(1000, func(in *typespb.FederatedService_Instance, j int) {
				in.Id = fmt.Sprintf("%s-%d", strings.Repeat("A", 40), j)
			})
		}},
		{"instances that have no name, in eight protocols", 10, func(m *fed, _ int) {
			m.Endpoints = endpoints(1000, func(e *typespb.FederatedService_Endpoint, i int) { e.Labels = []string{[]string{"a", "b"}[i%2]} })
			m.Instances = instances(8, func(in *typespb.FederatedService_Instance, i int) {
				in.Id = fmt.Sprintf("no name %d", i)
				in.Protocol = federation.Protocol(i + 1).String()
				in.EndpointSelector = []string{"a"}
			})
		}},
		{"fqdn with a hundred labels", 500, func(m *fed, i int) {
			m.Fqdn = fmt.Sprintf("%ss%d.fed.example", strings.Repeat("a.", 100), i)
		}},
		{"long description", 500, func(m *fed, _ int) { m.Description = strings.Repeat("x", limits.DescriptionBytes) }},
		{"64 long tags and SANs", 100, func(m *fed, i int) {
			m.Tags, m.Sans = many(64, fmt.Sprintf("%d-%s-%%d", i, strings.Repeat("x", 490))), many(64, fmt.Sprintf("%d-%s-%%d", i, strings.Repeat("x", 490)))
		}},
		{"a refused name", 2_000, func(m *fed, _ int) { m.Endpoints[0].Address = "127.0.0.1" }},
		{"an ID that is not the name", 2_000, func(*fed, int) {}},
		{"shared: three endpoints, two instances", 2_000, func(m *fed, _ int) {
			m.Endpoints = endpoints(3, func(e *typespb.FederatedService_Endpoint, i int) { e.Labels = []string{[]string{"eu", "us", "us"}[i]} })
			m.Instances = instances(2, func(in *typespb.FederatedService_Instance, i int) {
				in.EndpointSelector = []string{[]string{"eu", "us"}[i]}
			})
		}},
		{"shared: 1,000 endpoints", 10, func(m *fed, _ int) { m.Endpoints = endpoints(1000, nil) }},
		{"shared: instances that have no name, in eight protocols", 10, func(m *fed, _ int) {
			m.Endpoints = endpoints(1000, func(e *typespb.FederatedService_Endpoint, i int) { e.Labels = []string{[]string{"a", "b"}[i%2]} })
			m.Instances = instances(8, func(in *typespb.FederatedService_Instance, i int) {
				in.Id, in.Protocol, in.EndpointSelector = fmt.Sprintf("no name %d", i), federation.Protocol(i+1).String(), []string{"a"}
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			messages := make([]*rdpb.StreamResponse, tt.services)
			sent := 0
			for i := range messages {
				m := &fed{
					Name: fmt.Sprintf("service-%d", i), Fqdn: fmt.Sprintf("s%d.fed.example", i),
					Endpoints: endpoints(1, nil), Instances: instances(1, nil),
				}
				tt.fill(m, i)
				value := must.Get(proto.Marshal(m))(t)
				messages[i] = &rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: &anypb.Any{TypeUrl: wire.ResourceURL, Value: value}}
				if strings.Contains(tt.name, "an ID") {
					messages[i].ResourceId = m.Fqdn
				}
				sent += len(value)
			}
			config := zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{services.FQDN("example")}, TTL: 30, NegativeTTL: 5}}}
			if strings.HasPrefix(tt.name, "shared") {
				config.Owners[0].Sharing = zone.Sharing{
					Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Tiers: []zone.TierRule{{N: 1}}, Min: 1,
				}
			}
			c := catalog.New(catalog.Rules{
				Admit: wire.AddressPolicy{}.Check, Shares: func(fqdn federation.FQDN) bool { return config.SharesName(0, fqdn) },
			})
			b := zone.NewBuilder(config, nil)
			var unpacker packed.Unpacker
			before := heap()
			c.OpenStream(epoch)
			for i, m := range messages {
				ev := must.Get(wire.Decode(m))(t)
				if err := c.ApplyEvent(ev, epoch); err != nil && !strings.Contains(err.Error(), "127.0.0.1") {
					t.Fatal(err)
				}
				for _, change := range c.TakeChanges() {
					b.Put(b.Prepare(0, change.Packed, unpacker.Unpack(change.Packed)), change.Was, change.Generation, 0)
				}
				if i%64 == 0 {
					b.Publish(epoch.Add(time.Duration(i) * time.Second))
				}
			}
			z := b.Publish(epoch.Add(time.Hour * 1000))
			for i := range tt.services { // what owners are together is joined for the first query
				z.Lookup(fmt.Sprintf("s%d.fed.example.", i), dns.TypeTXT, epoch)
			}
			taken := int(heap() - before)
			counted := int(c.Summary().Octets)
			t.Logf("%d services: %d kB on the wire, %d kB counted, %d kB taken: %d and %d octets a service, %.2f for one counted",
				tt.services, sent>>10, counted>>10, taken>>10, counted/tt.services, taken/tt.services, float64(taken)/float64(counted))
			if taken > memoryFactor*counted {
				t.Errorf("%d octets are taken for %d that are counted, more than %d times as many", taken, counted, memoryFactor)
			}
			if taken*100 < least*counted {
				t.Errorf("%d octets are taken for %d that are counted, less than %d %%", taken, counted, least)
			}
			most = max(most, float64(taken)/float64(counted))
			runtime.KeepAlive(messages)
			runtime.KeepAlive(z)
			runtime.KeepAlive(b)
			runtime.KeepAlive(&unpacker)
			runtime.KeepAlive(c)
		})
	}
	if most <= memoryFactor-1 {
		t.Errorf("%.2f octets are taken for one that is counted, at most: memoryFactor %d is too large", most, memoryFactor)
	}
}

// TestMemoryOfNotImported has an owner send services without end that are not imported. Nothing
// of them is kept.
func TestMemoryOfNotImported(t *testing.T) {
	const services, most = 50_000, 50_000 // octets for all
	c := catalog.New(catalog.Rules{Admit: func(*federation.Service) *federation.InvalidError { return catalog.ErrNotImported }})
	c.OpenStream(epoch)
	s := service(t, "web", nil)
	before := heap()
	for i := range services {
		s.Name = fmt.Sprintf("service-%d", i)
		must.Do(t, c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: s.Name, ID: fmt.Sprint(i), Service: s}, epoch))
	}
	taken := int(heap() - before)
	if n := c.Summary().NotImported; n != services || taken > most {
		t.Errorf("%d updates have left %d octets", n, taken)
	}
	runtime.KeepAlive(c)
}

// TestMemoryOfTinyServices has an owner send very many of the smallest services, of which every
// other one is refused. Each counts at least what it takes, so that MaxCatalog bounds all of them,
// and those of a stream before as well.
func TestMemoryOfTinyServices(t *testing.T) {
	const limit = 1 << 18
	refused := &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: "no"}
	c := catalog.New(catalog.Rules{MaxCatalog: limit, Admit: func(s *federation.Service) *federation.InvalidError {
		if s.Description != "" {
			return refused
		}
		return nil
	}})
	before := int(heap())
	for range 2 {
		c.OpenStream(epoch)
		for i := range 50_000 {
			s := &federation.Service{Name: strconv.FormatUint(uint64(i)<<1|c.Summary().Generation&1, 36), FQDN: services.FQDN("a.b")}
			if i%2 == 0 {
				s.Description = "x"
			}
			_ = c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}, epoch)
		}
		c.TakeChanges()
	}
	taken := int(heap()) - before
	if s := c.Summary(); s.Octets > 2*limit || s.Octets < 2*limit-2000 || taken > memoryFactor*2*limit {
		t.Errorf("%d octets are counted and %d taken, of %d services and %d that are refused", s.Octets, taken, s.Services, s.Refused)
	}
	runtime.KeepAlive(c)
}

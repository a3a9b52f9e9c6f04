package zone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// united returns a zone in which so many owners share web.fed.example. Service makes what each of
// them says, of its number.
func united(owners int, service func(owner int) *federation.Service) *zone.Zone {
	all := make([]zone.Owner, owners)
	for i := range all {
		all[i] = sharer(fmt.Sprintf("o%02d", i), "web.fed.example", nil)
	}
	b := builder(all...)
	for i := range all {
		b.Put(i, service(i), 1)
	}
	return b.Publish(now)
}

// web makes a service of an owner of web.fed.example with so many endpoints and instances.
func web(owner, endpoints, instances int) *federation.Service {
	s := &federation.Service{Name: "web", FQDN: origin("web.fed.example")}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address(fmt.Sprintf("10.%d.%d.%d", owner, i/256, i%256)), Port: 80})
	}
	for i := range instances {
		s.Instances = append(s.Instances, federation.Instance{ID: fmt.Sprintf("v%d-%d", owner, i), Protocol: federation.HTTP})
	}
	return s
}

// TestSharedBeyondOneService has owners say at one name what each of them may, and more together
// than one service may: everything is answered, explained and transferred.
func TestSharedBeyondOneService(t *testing.T) {
	for name, tt := range map[string]struct {
		owners, endpoints, instances int
		labels, same                 bool // as many labels as there may be; the instances of all owners are one
	}{
		"endpoints":                          {owners: 2, endpoints: 501, instances: 1},
		"instances":                          {owners: 2, endpoints: 1, instances: 501},
		"labels, of a lone member":           {owners: 1, endpoints: 1, instances: 1, labels: true},
		"labels":                             {owners: 2, endpoints: 1, instances: 1, labels: true},
		"endpoints of one instance":          {owners: 2, endpoints: 501, instances: 1, same: true},
		"labels of one instance":             {owners: 2, endpoints: 1, instances: 1, labels: true, same: true},
		"labels of one, with a lone member ": {owners: 1, endpoints: 1, instances: 1, labels: true, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			id := func(owner int) string { return fmt.Sprintf("v%d-%d", owner, tt.instances-1) }
			texts, each := tt.owners*tt.instances, tt.endpoints // instances in all, and endpoints of each
			if tt.same {
				id = func(int) string { return "v1" }
				texts, each = 1, tt.owners*tt.endpoints
			}
			z := united(tt.owners, func(i int) *federation.Service {
				s := web(i, tt.endpoints, tt.instances)
				s.Instances[tt.instances-1].ID = id(i)
				for l := 0; l < limits.Labels && tt.labels; l++ {
					s.Endpoints[0].Labels = append(s.Endpoints[0].Labels, fmt.Sprint("l", l))
					s.Instances[0].EndpointSelector = append(s.Instances[0].EndpointSelector, fmt.Sprint("l", l))
				}
				if err := s.Validate(); err != nil {
					t.Fatal(err)
				}
				return s
			})
			if got := len(ask(z, "web.fed.example.", "A", now)) - 1; got != tt.owners*tt.endpoints {
				t.Errorf("%d addresses", got)
			}
			if got := len(ask(z, "web.fed.example.", "TXT", now)) - 1; got != 1+texts {
				t.Errorf("%d texts", got)
			}
			for owner := range tt.owners {
				id := id(owner)
				at := id + ".web.fed.example."
				if text := ask(z, at, "TXT", now); len(text) != 2 || !strings.Contains(text[1], "id="+id) {
					t.Errorf("%s has %q", at, text)
				}
				if got := len(ask(z, at, "SRV", now)) - 1; got != each {
					t.Errorf("%s has %d endpoints", at, got)
				}
				r := z.Lookup(at, dns.TypeTXT, now)
				if _, _, in := r.Source(); in == nil || in.ID != id {
					t.Errorf("%s is of instance %+v", at, in)
				}
				if h := explain(z, at, dns.TypeA, now).Holder; h == nil || h.Instance != id || len(h.Shared) != each {
					t.Errorf("%s is explained by %+v", at, h)
				}
			}
			records := transfer(t, z, "fed.example.")
			if n := count(records, dns.TypeTXT); n != 1+2*texts {
				t.Errorf("%d texts are transferred", n)
			}
		})
	}
}

func count(rrs []dns.RR, qtype uint16) (n int) {
	for _, rr := range rrs {
		if rr.Header().Rrtype == qtype {
			n++
		}
	}
	return n
}

// TestLargestSharedNameFitsAMessage has the most owners that can share a name, each with as much as a
// service may have: every reply fits a message.
func TestLargestSharedNameFitsAMessage(t *testing.T) {
	const most = 1000 // endpoints and instances of a service
	for _, tt := range []struct{ endpoints, instances int }{{most, 1}, {1, most}} {
		z := united(subtree.MaxMembers, func(i int) *federation.Service { return web(i, tt.endpoints, tt.instances) })
		last := fmt.Sprintf("v%d-%d", subtree.MaxMembers-1, tt.instances-1)
		for _, name := range []string{"web.fed.example.", "_http._tcp.web.fed.example.", last + ".web.fed.example."} {
			for _, qtype := range questionTypes {
				r := z.Lookup(name, qtype, now)
				checkReply(t, &r, name)
				if r.Kind == zone.Success {
					reply.AppendGlue(nil, &r, reply.AppendAnswer(nil, &r, name, 0), 0, now)
				}
			}
			r := z.Lookup(name, dns.TypeTXT, now)
			if _, _, in := r.Source(); in != nil && in.ID != last {
				t.Errorf("%s is of instance %+v", name, in)
			}
			if rrs := slices.Collect(z.Records("fed.example.", name, now)); len(rrs) == 0 {
				t.Errorf("%s has no records in a transfer", name)
			}
		}
	}
}

// TestSharedUpdateCost updates a small service at a name where other owners have little, or much: the writer has as
// much to do for it, and the one query that comes joins what they have.
func TestSharedUpdateCost(t *testing.T) {
	cost := func(services, endpoints int) float64 {
		owners := make([]zone.Owner, 8)
		for i := range owners {
			owners[i] = sharer(fmt.Sprint("o", i), "web.fed.example", nil)
		}
		b := builder(owners...)
		for i := range owners {
			for n := range services {
				s := web(i, endpoints, 1)
				s.Name = fmt.Sprintf("web-%03d", n)
				b.Put(i, s, 1)
			}
		}
		b.Publish(now)
		at, small := now, web(9, 1, 1)
		small.Name = "a"
		return testing.AllocsPerRun(20, func() {
			at = at.Add(time.Second)
			small.Description = at.String()
			b.Put(0, small, 1)
			b.Publish(at)
		})
	}
	little, much := cost(1, 1), cost(16, 1000)
	if much > 1.2*little {
		t.Errorf("%.0f allocations for an update where others have much, %.0f where they have little", much, little)
	}
}

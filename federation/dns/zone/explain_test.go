package zone_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// TestExplainOracle explains every name of random catalogs: the holder is what Lookup finds,
// and the rivals are all the other services that would have records at the name if they
// were alone.
func TestExplainOracle(t *testing.T) {
	catalogs := 500
	if testing.Short() {
		catalogs = 20
	}
	rivals := make(map[string]int) // by the beginning of the rule
	for seed := range catalogs {
		c := newChaos(uint64(seed))
		b := zonetest.NewBuilder(c.config, nil)
		for range 1 + c.IntN(30) {
			c.step(b)
		}
		z := b.Publish(now)
		alone := c.alone()
		for _, name := range c.names() {
			r := z.Lookup(name, dns.TypeA, now)
			e := z.Explain(name, dns.TypeA, now)
			if e.Result.Kind != r.Kind {
				t.Fatalf("seed %d: %s: the result is %d, want %d", seed, name, e.Result.Kind, r.Kind)
			}
			if r.Kind == zone.Outside {
				continue
			}
			held := ""
			if h := e.Holder; h != nil {
				held = fmt.Sprint(h.Owner, h.Service)
			}
			owner, s, in := r.Source()
			var got, want string
			if s != nil {
				want = source(owner, s, in, r.FQDN())
			}
			if h := e.Holder; h != nil {
				got = c.config.Owners[h.Owner].ID + " " + h.Service + " " + h.FQDN
				if h.Instance != "" {
					got += " " + h.Instance
				}
			}
			if got != want {
				t.Fatalf("seed %d: the holder of %s is %q, want %q\n%s", seed, name, got, want, c)
			}
			var wanting []string
			for id, names := range alone {
				if id != held && names[name] {
					wanting = append(wanting, id)
				}
			}
			var listed []string
			last := 0
			for _, r := range e.Rivals {
				listed = append(listed, fmt.Sprint(r.Owner, r.Service))
				rivals[r.Rule[:10]]++
				if r.Owner < last {
					t.Fatalf("seed %d: %s: rivals in the wrong order", seed, name)
				}
				last = r.Owner
			}
			slices.Sort(wanting)
			slices.Sort(listed)
			if d := gocmp.Diff(wanting, listed); d != "" {
				t.Fatalf("seed %d: rivals for %s (-want +got):\n%s\n%s", seed, name, d, c)
			}
		}
	}
	if t.Logf("%v", rivals); len(rivals) < 5 && !testing.Short() {
		t.Errorf("only these rules occur: %v", rivals)
	}
}

// alone returns for each offer, by owner and service, the names that would have its records
// if it were the only one.
func (o *oracle) alone() map[string]map[string]bool {
	all := make(map[string]map[string]bool)
	for i := range o.offers {
		single := oracle{config: o.config, offers: o.offers[i : i+1], statuses: make([]zone.Status, len(o.statuses))}
		names := make(map[string]bool)
		for name, at := range single.written() {
			names[name] = at.offer != nil
		}
		all[fmt.Sprint(o.offers[i].owner, o.offers[i].service.Name)] = names
	}
	return all
}

// TestExplainRules has one example of each rule by which a service does not have a name.
func TestExplainRules(t *testing.T) {
	config := zone.Config{Owners: []zone.Owner{
		{ID: "first", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}, TTL: 30, NegativeTTL: 5},
		{ID: "second", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}, TTL: 30, NegativeTTL: 5},
	}}
	type put struct {
		owner          int
		name, fqdn, id string
		generation     uint64
	}
	for name, tt := range map[string]struct {
		puts   []put
		ask    string
		holder string
		rule   string
	}{
		"later owner":        {[]put{{0, "a", "web.example", "i", 1}, {1, "b", "web.example", "i", 1}}, "web.example.", "a", `its owner comes later in the Corefile than first, of which service "a" has the fqdn`},
		"larger name":        {[]put{{0, "a", "web.example", "i", 1}, {0, "b", "web.example", "i", 1}}, "web.example.", "a", `service "a" of the same owner has the fqdn, as its name is the smaller one`},
		"further up":         {[]put{{0, "a", "web.example", "i", 1}, {1, "b", "i.web.example", "j", 1}}, "i.web.example.", "a", `its fqdn is a name that service "a" at web.example. has, of owner first, which comes first in the Corefile`},
		"instance":           {[]put{{0, "a", "web.example", "i", 1}, {0, "b", "i.web.example", "j", 1}}, "i.web.example.", "b", `the name is the fqdn of service "b" of owner first, and an instance does not get it`},
		"closer":             {[]put{{0, "a", "web.example", "x.y", 1}, {0, "b", "y.web.example", "x", 1}}, "x.y.web.example.", "b", `service "b" of owner first is closer to the name, at y.web.example.`},
		"expired":            {[]put{{0, "a", "web.example", "i", 0}, {1, "b", "web.example", "i", 1}}, "web.example.", "b", "it was stale for the whole retention and has expired"},
		"protocol, shadowed": {[]put{{0, "a", "web.example", "i", 1}, {1, "b", "web.example", "i", 1}}, "_http._tcp.web.example.", "a", `its owner comes later in the Corefile than first, of which service "a" has the fqdn`},
	} {
		t.Run(name, func(t *testing.T) {
			b := zonetest.NewBuilder(config, nil)
			for _, p := range tt.puts {
				b.PutUpdated(p.owner, explained(p.name, p.fqdn, p.id), p.generation, 1_000_000)
			}
			for i := range config.Owners {
				b.SetStatus(i, zone.Status{Live: 1, Expires: now.Add(-time.Hour), Known: true})
			}
			e := b.Publish(now).Explain(tt.ask, dns.TypeA, now)
			if e.Holder == nil || e.Holder.Service != tt.holder || !e.Holder.Updated.Equal(time.Unix(1_000_000, 0)) {
				t.Errorf("the holder is %+v, want %s", e.Holder, tt.holder)
			}
			if len(e.Rivals) != 1 || e.Rivals[0].Rule != tt.rule {
				t.Errorf("rivals: %+v, want %s", e.Rivals, tt.rule)
			}
		})
	}
}

// TestExplainUnshared has owners of one name of which one does not share it, as the first and as the
// last of them.
func TestExplainUnshared(t *testing.T) {
	for _, tt := range []struct {
		alone  int
		holder int
		rule   string
	}{
		{0, 0, `its owner comes later in the Corefile than o0, of which service "0" has the fqdn; the block of o0 does not share the name`},
		{2, 0, `its owner comes later in the Corefile than o0, of which service "0" has the fqdn; the block of o2 does not share the name`},
	} {
		var config zone.Config
		for i := range 3 {
			o := zone.Owner{ID: fmt.Sprint("o", i), Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}, TTL: 30}
			if i != tt.alone {
				o.Sharing = zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Min: 1}
			}
			config.Owners = append(config.Owners, o)
		}
		b := zonetest.NewBuilder(config, nil)
		for i := range config.Owners {
			b.SetStatus(i, zone.Status{Known: true})
			b.Put(i, explained(fmt.Sprint(i), "web.example", "i"), 1)
		}
		e := b.Publish(now).Explain("web.example.", dns.TypeA, now)
		if e.Holder == nil || e.Holder.Owner != tt.holder || len(e.Rivals) != 1 || e.Rivals[0].Rule != tt.rule {
			t.Errorf("without owner %d: holder %+v, rivals %+v, expected %s", tt.alone, e.Holder, e.Rivals, tt.rule)
		}
	}
}

// explained is a service with one address and one instance.
func explained(name, at, id string) *federation.Service {
	address := must.Value(federation.ParseAddress("192.0.2.1"))
	return &federation.Service{
		Name: name, FQDN: must.Value(federation.ParseFQDN(at)), Endpoints: []federation.Endpoint{{Address: address, Port: 80}},
		Instances: []federation.Instance{{ID: id, Protocol: federation.HTTP}},
	}
}

// TestExplainIsBounded has a thousand services at one name.
func TestExplainIsBounded(t *testing.T) {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}}}}, nil)
	for i := range 1000 {
		b.Put(0, explained(fmt.Sprint(i), "web.example", "i"), 1)
	}
	e := b.Publish(now).Explain("web.example.", dns.TypeA, now)
	if e.Role != domain.Service || len(e.Rivals) != 100 || e.More != 899 {
		t.Errorf("%v with %d rivals and %d more", e.Role, len(e.Rivals), e.More)
	}
}

// TestExplainHolder has what is said of a service: its original name, its faults, and until
// when it is there.
func TestExplainHolder(t *testing.T) {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{
		ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}, TTL: 30, Renames: []zone.Rename{{From: must.Value(federation.ParseFQDN("remote")), To: must.Value(federation.ParseFQDN("example"))}},
	}}}, nil)
	b.Put(0, explained("a", "web.remote", "i"), 1)
	b.Put(0, explained("b", "i.web.remote", "no name"), 1)
	expires := now.Add(time.Hour)
	b.SetStatus(0, zone.Status{Live: 2, Expires: expires, Known: true, Lost: now})
	z := b.Publish(now)
	want := &zone.Holder{
		Service: "a", FQDN: "web.example.", Original: "web.remote.", Stale: true, Expires: expires,
		Faults: map[zone.Fault]int{"instance_conflict": 1},
	}
	if d := gocmp.Diff(want, z.Explain("web.example.", dns.TypeA, now).Holder); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if e := z.Explain("gone.example.", dns.TypeA, now); e.Holder != nil || e.Role != domain.Missing || !slices.Equal(e.Owners, []int{0}) {
		t.Errorf("%+v", e)
	}
	if e := z.Explain("elsewhere.", dns.TypeA, now); e.Result.Kind != zone.Outside || e.Owners != nil {
		t.Errorf("%+v", e)
	}
}

func BenchmarkExplain(b *testing.B) {
	builder := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}}}}, nil)
	address := must.Value(federation.ParseAddress("192.0.2.1"))
	for i := range 100_000 {
		builder.Put(0, &federation.Service{
			Name: fmt.Sprint(i), FQDN: must.Value(federation.ParseFQDN(fmt.Sprintf("s%d.example", i))),
			Endpoints: []federation.Endpoint{{Address: address, Port: 80}}, Instances: []federation.Instance{{ID: "i", Protocol: federation.HTTP}},
		}, 1)
	}
	z := builder.Publish(now)
	b.ReportAllocs()
	for b.Loop() {
		z.Explain("i.s77.example.", dns.TypeA, now)
	}
}

// TestExplainCircle has endpoints that lead back to themselves, at once, through another owner's
// service or from beside, and such that do not. It is said for types that depend on the addresses.
func TestExplainCircle(t *testing.T) {
	origins := []federation.FQDN{must.Value(federation.ParseFQDN("example"))}
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "a", Origins: origins, TTL: 30}, {ID: "b", Origins: origins, TTL: 30}}}, nil)
	for _, put := range []struct {
		owner int
		name  string
		hosts []string
	}{
		{0, "self", []string{"self.example"}},
		{0, "partly", []string{"192.0.2.1", "partly.example"}},
		{0, "there", []string{"i.back.example"}},
		{1, "back", []string{"there.example"}},
		{1, "beside", []string{"192.0.2.1", "there.example"}},
		{0, "right", []string{"last.example", "elsewhere.test", "missing.example", "last.example"}},
		{0, "last", []string{"192.0.2.1"}},
	} {
		s := explained(put.name, put.name+".example", "i")
		s.Endpoints = nil
		for i, host := range put.hosts {
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(host)), Port: uint16(80 + i)})
		}
		b.Put(put.owner, s, 1)
	}
	z := b.Publish(now)
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"self.example.", dns.TypeA, "self.example."},
		{"self.example.", dns.TypeAAAA, "self.example."},
		{"self.example.", dns.TypeSRV, "self.example."},
		{"_http._tcp.self.example.", dns.TypeSRV, "self.example."},
		{"i.self.example.", dns.TypeA, "self.example."},
		{"self.example.", dns.TypeMX, ""},
		{"partly.example.", dns.TypeA, "partly.example."},
		{"there.example.", dns.TypeA, "i.back.example."},
		{"back.example.", dns.TypeA, "there.example."},
		{"beside.example.", dns.TypeA, "there.example."},
		{"right.example.", dns.TypeA, ""},
		{"last.example.", dns.TypeA, ""},
		{"none.example.", dns.TypeA, ""},
		{"example.", dns.TypeA, ""},
	} {
		if got := z.Explain(tt.name, tt.qtype, now).Circle; got != tt.want {
			t.Errorf("%s %s: the circle is %q, want %q", tt.name, dns.TypeToString[tt.qtype], got, tt.want)
		}
	}
}

// TestExplainManyHosts has services that lead to each other in every way: what is followed is bounded.
func TestExplainManyHosts(t *testing.T) {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}}}}, nil)
	const services = 500
	for i := range services {
		s := explained(fmt.Sprint(i), fmt.Sprintf("s%d.example", i), "i")
		for j := i + 1; j < services; j++ {
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(fmt.Sprintf("s%d.example", j))), Port: 80})
		}
		b.Put(0, s, 1)
	}
	if got := b.Publish(now).Explain("s0.example.", dns.TypeA, now).Circle; got != "" {
		t.Errorf("the circle is %q", got)
	}
}

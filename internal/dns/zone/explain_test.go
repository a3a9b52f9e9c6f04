package zone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// explain returns the answer of Explain.
func explain(z *zone.Zone, name string, qtype uint16, at time.Time) status.BlockAnswer {
	a, _ := z.Explain(name, qtype, at)
	return a
}

// TestExplainOracle explains every name of random catalogs: the holder is what Lookup finds,
// and the rivals are all the other services that would have records at the name if they
// were alone.
func TestExplainOracle(t *testing.T) {
	rivals := make(map[string]int) // by the beginning of the rule
	for seed := range seeds(300) {
		c := newChaos(seed)
		b := zonetest.NewBuilder(c.config, nil)
		for range 1 + c.IntN(30) {
			c.step(b)
		}
		z := b.Publish(now)
		alone := c.alone()
		for _, name := range c.names() {
			r := z.Lookup(name, dns.TypeA, now)
			e, owners := z.Explain(name, dns.TypeA, now)
			if outside := r.Kind == zone.Outside; outside != (owners == nil) || outside != (e.Zone == "") {
				t.Fatalf("seed %d: %s: kind %d is explained by %+v of %d", seed, name, r.Kind, e, owners)
			}
			if r.Kind == zone.Outside {
				continue
			}
			index := func(id string) int {
				return slices.IndexFunc(c.config.Owners, func(o zone.Owner) bool { return o.ID == id })
			}
			owner, s, in := r.Source()
			var held, got, want string
			if s != nil {
				want = source(owner, s, in, r.FQDN())
			}
			if h := e.Holder; h != nil {
				held = fmt.Sprint(index(h.Owner), h.Service)
				got = h.Owner + " " + h.Service + " " + h.FQDN
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
				listed = append(listed, fmt.Sprint(index(r.Owner), r.Service))
				rivals[r.Rule[:10]]++
				if index(r.Owner) < last {
					t.Fatalf("seed %d: %s: rivals in the wrong order", seed, name)
				}
				last = index(r.Owner)
			}
			slices.Sort(wanting)
			slices.Sort(listed)
			if d := gocmp.Diff(wanting, listed); d != "" {
				t.Fatalf("seed %d: rivals for %s (-want +got):\n%s\n%s", seed, name, d, c)
			}
		}
	}
	if len(rivals) < 5 {
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
	const everything = "*"
	for name, tt := range map[string]struct {
		shares   [3]string // what each owner shares
		services []string  // the index of the owner, and what service takes
		ask      string
		holder   string
		rule     string
	}{
		"later owner": {
			services: []string{"0 a web.fed.example i/HTTP", "1 b web.fed.example i/HTTP"}, ask: "web", holder: "a",
			rule: `owner o0, whose service "a" has that name, comes first in the Corefile`,
		},
		"later owner, for a name of a protocol": {
			services: []string{"0 a web.fed.example i/HTTP", "1 b web.fed.example i/HTTP"}, ask: "_http._tcp.web", holder: "a",
			rule: `owner o0, whose service "a" has that name, comes first in the Corefile`,
		},
		"the first owner does not share": {
			shares: [3]string{1: everything, 2: everything}, ask: "web", holder: "a",
			services: []string{"0 a web.fed.example i/HTTP", "1 b web.fed.example i/HTTP", "2 c web.fed.example i/HTTP"},
			rule:     `owner o0, whose service "a" has that name, comes first in the Corefile; the block of o0 does not share the name`,
		},
		"the last owner does not share": {
			shares: [3]string{0: everything, 1: everything}, ask: "web", holder: "a",
			services: []string{"0 a web.fed.example i/HTTP", "1 b web.fed.example i/HTTP", "2 c web.fed.example i/HTTP"},
			rule:     `owner o0, whose service "a" has that name, comes first in the Corefile; the block of o2 does not share the name`,
		},
		"larger name": {
			services: []string{"0 a web.fed.example i/HTTP", "0 b web.fed.example i/HTTP"}, ask: "web", holder: "a",
			rule: `service "a" of the same owner has that name, because it comes first in the alphabet`,
		},
		"further up": {
			services: []string{"0 a web.fed.example i/HTTP", "1 b i.web.fed.example j/HTTP"}, ask: "i.web", holder: "a",
			rule: `that is a name of service "a" at web.fed.example., whose owner o0 comes first in the Corefile`,
		},
		"instance": {
			services: []string{"0 a web.fed.example i/HTTP", "0 b i.web.fed.example j/HTTP"}, ask: "i.web", holder: "b",
			rule: `the name is the fqdn of service "b" of owner o0, which goes before the name of an instance`,
		},
		"closer": {
			services: []string{"0 a web.fed.example x.y/HTTP", "0 b y.web.fed.example x/HTTP"}, ask: "x.y.web", holder: "b",
			rule: `service "b" of owner o0 is closer to the name, at y.web.fed.example.`,
		},
		"expired": {
			services: []string{"0 old web.fed.example i/HTTP", "1 b web.fed.example i/HTTP"}, ask: "web", holder: "b",
			rule: "it was stale for the whole retention, so it has expired",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := builder(sharer("o0", tt.shares[0], nil), sharer("o1", tt.shares[1], nil), sharer("o2", tt.shares[2], nil))
			b.SetStatus(0, zone.Status{Live: 1, Expires: now.Add(-time.Hour), Known: true})
			for _, text := range tt.services {
				s := service(text[2:])
				generation := uint64(1)
				if s.Name == "old" {
					generation = 0
				}
				b.PutUpdated(int(text[0]-'0'), s, generation, 1_000_000)
			}
			e := explain(b.Publish(now), tt.ask+".fed.example.", dns.TypeA, now)
			if e.Holder == nil || e.Holder.Service != tt.holder || !e.Holder.Updated.Equal(time.Unix(1_000_000, 0)) {
				t.Errorf("the holder is %+v, want %s", e.Holder, tt.holder)
			}
			if len(e.Rivals) != 1 || e.Rivals[0].Rule != tt.rule {
				t.Errorf("rivals: %+v, want %s", e.Rivals, tt.rule)
			}
		})
	}
}

// TestExplainIsBounded has a thousand services at one name.
func TestExplainIsBounded(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	for i := range 1000 {
		b.Put(0, service(fmt.Sprintf("%d web.fed.example i/HTTP", i)), 1)
	}
	e := explain(b.Publish(now), "web.fed.example.", dns.TypeA, now)
	if e.Is != "service" || len(e.Rivals) != 100 || e.MoreRivals != 899 {
		t.Errorf("%v with %d rivals and %d more", e.Is, len(e.Rivals), e.MoreRivals)
	}
}

// TestExplainHolder has what is said of a service: its original name, its faults, and until
// when it is there.
func TestExplainHolder(t *testing.T) {
	o := owner("o", "fed.example")
	o.Renames = []zone.Rename{{From: origin("remote"), To: origin("fed.example")}}
	b := builder(o)
	b.Put(0, service("a web.remote 192.0.2.1@80 i/HTTP"), 1)
	b.Put(0, service("b i.web.remote 192.0.2.1@80 j/HTTP"), 1)
	expires := now.Add(time.Hour)
	b.SetStatus(0, zone.Status{Live: 2, Expires: expires, Known: true, Lost: now})
	z := b.Publish(now)
	want := &status.NameHolder{
		Owner: "o", Service: "a", FQDN: "web.fed.example.", Original: "web.remote.", Stale: true, Expires: expires,
		Faults: map[string]int{"instance_conflict": 1},
	}
	if d := gocmp.Diff(want, explain(z, "web.fed.example.", dns.TypeA, now).Holder); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if e, owners := z.Explain("gone.fed.example.", dns.TypeA, now); e.Holder != nil || e.Is != "missing" || !slices.Equal(owners, []int{0}) {
		t.Errorf("%+v of %d", e, owners)
	}
	if e, owners := z.Explain("elsewhere.", dns.TypeA, now); e.Zone != "" || owners != nil {
		t.Errorf("%+v of %d", e, owners)
	}
}

func BenchmarkExplain(b *testing.B) {
	z := filled(100_000).Publish(now)
	b.ReportAllocs()
	for b.Loop() {
		z.Explain("v1.s77.team77.fed.example.", dns.TypeA, now)
	}
}

// TestExplainCircle has endpoints that lead back to themselves, at once, through another owner's
// service or from beside, and such that do not. It is said for types that depend on the addresses.
func TestExplainCircle(t *testing.T) {
	b := builder(owner("a", "fed.example"), owner("b", "fed.example"))
	for _, text := range []string{
		"0 self self.fed.example self.fed.example@80 i/HTTP",
		"0 partly partly.fed.example 192.0.2.1@80 partly.fed.example@81 i/HTTP",
		"0 there there.fed.example i.back.fed.example@80 i/HTTP",
		"1 back back.fed.example there.fed.example@80 i/HTTP",
		"1 beside beside.fed.example 192.0.2.1@80 there.fed.example@81 i/HTTP",
		"0 right right.fed.example last.fed.example@80 elsewhere.test@81 missing.fed.example@82 last.fed.example@83 i/HTTP",
		"0 last last.fed.example 192.0.2.1@80 i/HTTP",
	} {
		b.Put(int(text[0]-'0'), service(text[2:]), 1)
	}
	const many = 60 // that lead to each other in every way: each is followed once
	for i := range many {
		text := fmt.Sprintf("m%d m%d.fed.example 192.0.2.1@80 i/HTTP", i, i)
		for j := i + 1; j < many; j++ {
			text += fmt.Sprintf(" m%d.fed.example@80", j)
		}
		b.Put(0, service(text), 1)
	}
	z := b.Publish(now)
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"self", dns.TypeA, "self"},
		{"self", dns.TypeAAAA, "self"},
		{"self", dns.TypeSRV, "self"},
		{"_http._tcp.self", dns.TypeSRV, "self"},
		{"i.self", dns.TypeA, "self"},
		{"self", dns.TypeMX, ""},
		{"partly", dns.TypeA, "partly"},
		{"there", dns.TypeA, "i.back"},
		{"back", dns.TypeA, "there"},
		{"beside", dns.TypeA, "there"},
		{"right", dns.TypeA, ""},
		{"last", dns.TypeA, ""},
		{"none", dns.TypeA, ""},
		{"m0", dns.TypeA, ""},
	} {
		got := strings.TrimSuffix(explain(z, tt.name+".fed.example.", tt.qtype, now).Circle, ".fed.example.")
		if got != tt.want {
			t.Errorf("%s %s: the circle is %q, want %q", tt.name, dns.TypeToString[tt.qtype], got, tt.want)
		}
	}
}

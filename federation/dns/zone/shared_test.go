package zone_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// sharer makes an owner of fed.example. that shares the names, and of which change changes how.
func sharer(id, names string, change func(*zone.Sharing)) zone.Owner {
	o := owner(id, "fed.example")
	o.Sharing = zone.Sharing{Min: 1}
	for name := range strings.FieldsSeq(names) {
		o.Sharing.Names = append(o.Sharing.Names, must.Value(pattern.ParseName(name)))
	}
	if change != nil {
		change(&o.Sharing)
	}
	return o
}

// TestSharedName follows one name of two owners from the first to the last endpoint.
func TestSharedName(t *testing.T) {
	b := builder(sharer("a", "web.fed.example", nil), sharer("b", "*.fed.example", nil), owner("c", "fed.example"))
	b.Put(0, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 192.0.2.3@80 v1/HTTP"), 1)
	b.Put(1, service("shop web.fed.example 192.0.2.3@80 192.0.2.4@80 192.0.2.5@80 v1/HTTP v2/HTTP"), 1)
	b.Put(2, service("web web.fed.example 192.0.2.9@80 v9/HTTP"), 1)
	expect(t, b.Publish(now), now,
		"web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v1.web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v2.web A | NOERROR | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v2.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-3.addr.web.fed.example. | 30 SRV 0 100 80 192-0-2-4.addr.web.fed.example. | 30 SRV 0 100 80 192-0-2-5.addr.web.fed.example.",
		"web AAAA | NODATA", "v9.web A | NXDOMAIN", "192-0-2-5.addr.web A | NOERROR | 30 A 192.0.2.5",
	)
	if n := faults(b, 2)["fqdn_conflict"]; n != 1 {
		t.Errorf("%d conflicts of the owner that does not share", n)
	}
	b.Put(1, service("shop web.fed.example 192.0.2.4@80 192.0.2.5@80 v1/HTTP v2/HTTP"), 1)
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Put(0, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 v1/HTTP"), 1)
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Remove(0, "web")
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Remove(1, "shop")
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.9")
}

// TestSharedTiers has the near tier grow from nothing: what is far is answered while the near one is not
// enough, and only then.
func TestSharedTiers(t *testing.T) {
	enough := func(s *zone.Sharing) { s.Min = 3 }
	b := builder(
		sharer("near", "web.fed.example", enough),
		sharer("far", "web.fed.example", func(s *zone.Sharing) { enough(s); s.Tiers = []zone.Tier{{N: 1}} }),
	)
	near := func(n int) *federation.Service {
		s := "web web.fed.example v1/HTTP"
		for i := range n {
			s += fmt.Sprintf(" 10.0.0.%d@80", 1+i)
		}
		return service(s)
	}
	look := func(want int, far bool) {
		t.Helper()
		answer := ask(b.Publish(now), "web.fed.example.", "A", now)
		if got := slices.Contains(answer, "30 A 192.0.2.1"); got != far || len(answer)-1 != want {
			t.Errorf("far is answered: %v, of %d addresses; want %v of %d", got, len(answer)-1, far, want)
		}
	}
	b.Put(1, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 192.0.2.3@80 v1/HTTP"), 1)
	look(3, true)
	b.Put(0, near(1), 1)
	look(4, true)
	b.Put(0, near(2), 1)
	look(5, true)
	b.Put(0, near(30), 1)
	look(30, false)
	b.Put(0, near(2), 1)
	look(5, true)
}

// TestSharedLoss loses an owner, the other one, and gets one of them back. What is lost stands behind
// what is there at once, and is there at once again.
func TestSharedLoss(t *testing.T) {
	b := builder(sharer("a", "web.fed.example", nil), sharer("b", "web.fed.example", nil))
	b.Put(0, service("web web.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	b.Put(1, service("web web.fed.example 192.0.2.2@80 v1/HTTP"), 1)
	at := now
	srv := func(of ...string) string { // in this order
		return "web SRV | NOERROR | 30 SRV " + of[0] + ".addr.web.fed.example. | 30 SRV " + of[1] + ".addr.web.fed.example."
	}
	look := func(stale bool, rows ...string) {
		t.Helper()
		z := b.Publish(at)
		expect(t, z, at, rows...)
		if r := z.Lookup("web.fed.example.", dns.TypeA, at); r.Stale() != stale {
			t.Errorf("stale is %v", r.Stale())
		}
	}
	both := "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2"
	look(false, both, srv("0 100 80 192-0-2-1", "0 100 80 192-0-2-2"))
	b.SetStatus(0, zone.Status{Live: 2, Known: true, Lost: at, Expires: at.Add(time.Hour)})
	look(false, "web A | NOERROR | 30 A 192.0.2.2", srv("0 100 80 192-0-2-2", "10 100 80 192-0-2-1"))
	end := at.Add(time.Hour - time.Second + 1) // when its TTL would be 0
	b.Publish(at.Add(time.Second))             // the serial has moved
	if due, ok := b.Due(); !ok || !due.Equal(end) {
		t.Errorf("due at %s, not %s", due, end)
	}
	at = at.Add(time.Minute)
	b.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: at, Expires: at.Add(time.Hour)})
	look(true, both, srv("10 100 80 192-0-2-1", "10 100 80 192-0-2-2"))
	b.SetStatus(0, zone.Status{Live: 2, Known: true})
	b.Confirm(0, "web", 2)
	look(false, "web A | NOERROR | 30 A 192.0.2.1", srv("0 100 80 192-0-2-1", "10 100 80 192-0-2-2"))
	want := []zone.SharedEndpoint{
		{Address: "192.0.2.1", Port: 80, Owners: []int{0}, Live: true, Answered: true},
		{Address: "192.0.2.2", Port: 80, Owners: []int{1}},
	}
	if diff := cmp.Diff(want, b.Publish(at).Explain("web.fed.example.", dns.TypeA, at).Holder.Shared); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	at = at.Add(time.Hour)
	look(false, "web A | NOERROR | 30 A 192.0.2.1", "192-0-2-2.addr.web A | NXDOMAIN")
	b.Publish(at.Add(time.Second))
	if due, ok := b.Due(); ok {
		t.Errorf("due at %s, though nothing is left to expire", due)
	}
}

// TestSharedDifferences has owners that differ in what clients need to be the same. Each difference
// is told once.
func TestSharedDifferences(t *testing.T) {
	b := builder(sharer("a", "web.fed.example", nil), sharer("b", "web.fed.example", nil), sharer("c", "web.fed.example", nil))
	a, c := service("web web.fed.example 192.0.2.1@80 v1/HTTP"), service("c web.fed.example 192.0.2.3@80 v1/HTTP")
	a.SANs = []string{"a.example", "web.example"}
	a.Instances[0].Metadata = []federation.Pair{{Key: "sni", Value: "web.example"}}
	c.SANs = []string{"b.example\n", "web.example"}
	c.Instances[0].Metadata = []federation.Pair{{Key: "SNI", Value: "web.example"}}
	b.Put(0, a, 1)
	b.Put(1, service("web web.fed.example 192.0.2.2@80 v2/GRPC"), 1)
	b.Put(1, service("web2 web.fed.example 192.0.2.3@80 v3/GRPC"), 1)
	b.Put(2, c, 1)
	tell := func(want ...zone.Difference) {
		t.Helper()
		b.Publish(now)
		if diff := cmp.Diff(want, b.Differences()); diff != "" {
			t.Errorf("differences (-want +got):\n%s", diff)
		}
	}
	byB := zone.Difference{Owner: 1, FQDN: "web.fed.example.", Service: "web", What: "has protocol GRPC; lacks SAN a.example, SAN web.example, SNI web.example, protocol HTTP"}
	tell(byB, zone.Difference{Owner: 2, FQDN: "web.fed.example.", Service: "c", What: `has SAN b.example\n; lacks SAN a.example`})
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3", "_grpc._tcp.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-2.addr.web.fed.example.")
	want := map[zone.Fault]int{zone.FaultDiffers: 1, "fqdn_conflict": 1}
	if diff := cmp.Diff(want, faults(b, 1)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b.Put(1, service("web web.fed.example 192.0.2.4@80 v2/GRPC"), 1)
	b.Put(2, service("c web.fed.example 192.0.2.3@80"), 1)
	tell(zone.Difference{Owner: 2, FQDN: "web.fed.example.", Service: "c", What: "lacks SAN a.example, SAN web.example, SNI web.example, protocol HTTP"})
	b.Remove(0, "web")
	tell(zone.Difference{Owner: 2, First: 1, FQDN: "web.fed.example.", Service: "c", What: "lacks protocol GRPC"})
	for i, name := range []string{1: "web", 2: "c"} {
		b.Remove(i, name)
	}
	b.Remove(1, "web2")
	tell()
	for i := range 3 {
		if f := faults(b, i); len(f) > 0 {
			t.Errorf("faults %v of owner %d are left", f, i)
		}
	}
}

// TestSharedOrder has the same services arrive in every order: the zone is the same.
func TestSharedOrder(t *testing.T) {
	services := []string{
		"web web.fed.example 192.0.2.1@80[x] 192.0.2.2@80 v1/HTTP", "web web.fed.example 192.0.2.2@80[x] v1/HTTP v2/GRPC",
		"a web.fed.example 192.0.2.3@81 v3/HTTP", "b web.fed.example 192.0.2.4@81 v1/HTTP",
	}
	var first []string
	for _, order := range permutations(len(services)) {
		b := builder(
			sharer("a", "web.fed.example", func(s *zone.Sharing) { s.Tiers = []zone.Tier{{N: 2, Label: "x"}} }),
			sharer("b", "*", nil), sharer("c", "*.fed.example", nil), sharer("d", "web.fed.example", nil),
		)
		for _, i := range order {
			b.Put(i, service(services[i]), 1)
		}
		all := data("", transfer(t, b.Publish(now), "fed.example."))
		if slices.Sort(all); first == nil {
			first = all
		}
		if diff := cmp.Diff(first, all); diff != "" {
			t.Fatalf("in the order %v (-first +now):\n%s", order, diff)
		}
	}
}

// TestSharedHosts compares, of random owners of which each refuses an address, what a name gets behind hosts
// that are names themselves with what should be: that which one of the owners that say a host says there
// itself, or may publish. It says so without an owner that expires as well.
func TestSharedHosts(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		var owners []zone.Owner
		var refused []string
		for i := range 2 + r.IntN(2) {
			refused = append(refused, fmt.Sprint("192.0.2.", 1+r.IntN(4)))
			o := sharer(fmt.Sprint("o", i), "*.fed.example", nil)
			o.Admits = func(ip netip.Addr) bool { return ip.String() != refused[i] }
			owners = append(owners, o)
		}
		owners = append(owners, owner("plain", "fed.example"))
		refused = append(refused, fmt.Sprint("192.0.2.", 1+r.IntN(4)))
		owners[len(owners)-1].Admits = func(ip netip.Addr) bool { return ip.String() != refused[len(refused)-1] }
		b := builder(owners...)
		said := make(map[string][][]string) // by name and owner: endpoints
		for _, name := range []string{"web", "gw"} {
			said[name] = make([][]string, len(owners))
			for i := range owners[1:] {
				for range r.IntN(3) {
					said[name][i] = append(said[name][i], fmt.Sprint("192.0.2.", 1+r.IntN(4)))
				}
				if name == "web" && r.IntN(3) > 0 {
					said[name][i] = append(said[name][i], "gw.fed.example", "gw.example.net")
				}
			}
		}
		said["front"] = make([][]string, len(owners))
		said["front"][r.IntN(len(owners))] = []string{"gw.fed.example"}
		for name, of := range said {
			for i, endpoints := range of {
				if len(endpoints) > 0 {
					b.Put(i, service(name+" "+name+".fed.example "+strings.Join(endpoints, "@80 ")+"@80"), 1)
				}
			}
		}
		for range 2 {
			z := b.Publish(now)
			for _, name := range []string{"web", "front"} {
				a, hosts, denied, isTarget := make(map[string]bool), make(map[string]bool), make(map[string]bool), false
				for i, endpoints := range said[name] {
					for _, e := range endpoints {
						whole := e == "gw.fed.example"
						switch e {
						case "gw.fed.example":
							if !slices.ContainsFunc(said["gw"], func(e []string) bool { return e != nil }) {
								hosts[fmt.Sprint(i, " gw.fed.example.")] = true // there may be one elsewhere
							}
							for _, there := range said["gw"] {
								for _, ip := range there {
									if ip == refused[i] && !slices.Contains(said["gw"][i], ip) {
										denied[ip], whole = true, false
									} else {
										a[ip] = true
									}
								}
							}
						case "gw.example.net":
							hosts[fmt.Sprint(i, " gw.example.net.")] = true
						default:
							a[e] = true
						}
						isTarget = isTarget || whole
					}
				}
				maps.DeleteFunc(denied, func(ip string, _ bool) bool { return a[ip] })
				at := name + ".fed.example."
				var got []string
				for _, line := range ask(z, at, "A", now)[1:] {
					if ip, ok := strings.CutPrefix(line, "30 A "); ok {
						got = append(got, ip)
					}
				}
				if diff := cmp.Diff(slices.Sorted(maps.Keys(a)), got); diff != "" {
					t.Fatalf("seed %d: %s of %v, refused %v (-want +got):\n%s", seed, name, said, refused, diff)
				}
				result := z.Lookup(at, dns.TypeA, now)
				for _, h := range result.Hosts() {
					key := fmt.Sprint(h.Owner, " ", h.Name)
					if !hosts[key] {
						t.Fatalf("seed %d: %s is looked up for %s", seed, key, name)
					}
					delete(hosts, key)
				}
				if len(hosts) > 0 || result.Denied() != (len(denied) > 0) {
					t.Fatalf("seed %d: %s: %v are not looked up; denied is %v", seed, name, hosts, result.Denied())
				}
				srv := strings.Join(ask(z, at, "SRV", now), "\n")
				if strings.Contains(srv, " gw.fed.example.") != isTarget {
					t.Fatalf("seed %d: %s of %v, refused %v: target is %v in %s", seed, name, said, refused, !isTarget, srv)
				}
			}
			lost := r.IntN(len(owners))
			b.SetStatus(lost, zone.Status{Live: 2, Known: true, Lost: now.Add(-time.Hour), Expires: now})
			for name := range said {
				said[name][lost] = nil
			}
		}
	}
}

// sharedWorld has owners that share some names, and does what may happen to them. It says
// itself, in the simplest way, what has to be answered.
type sharedWorld struct {
	*rand.Rand

	b      *zonetest.Builder
	owners []*sharedOwner
	at     time.Time
	named  int // owners, ever
}

// sharedOwner is an owner, with what the builder has to know of it.
type sharedOwner struct {
	zone.Owner

	offers      map[string]*federation.Service // by name
	generation  uint64                         // of the offers
	fresh       map[string]bool                // the offers of the next generation: the owner is lost, and has sent them again
	known       bool
	lost, grace time.Time // zero: it is there; nothing waits for it
}

const sharedRetention, sharedGrace = 90 * time.Second, 30 * time.Second

func newSharedWorld(seed uint64) *sharedWorld { return newSharedWorldFrom(rand.NewPCG(seed, 1)) }

func newSharedWorldFrom(source rand.Source) *sharedWorld {
	w := &sharedWorld{Rand: rand.New(source), at: now}
	for range 2 + w.IntN(3) {
		w.add()
	}
	for _, o := range w.owners {
		o.known, o.grace = true, time.Time{}
	}
	w.reload()
	return w
}

// add puts an owner that is not known yet somewhere into the configuration.
func (w *sharedWorld) add() {
	o := &sharedOwner{offers: make(map[string]*federation.Service), fresh: make(map[string]bool), generation: 1, grace: w.at.Add(sharedGrace)}
	o.ID = fmt.Sprint("o", w.named)
	w.named++
	w.owners = slices.Insert(w.owners, w.IntN(len(w.owners)+1), o)
}

// reload makes a builder with another configuration: of its owners, some share other names, or in
// another way.
func (w *sharedWorld) reload() {
	enough := 1 + w.IntN(4)
	for _, o := range w.owners {
		if len(o.Origins) > 0 && w.IntN(2) == 0 {
			o.Sharing.Min = enough // which all of them have
			continue
		}
		var names []string
		for _, name := range []string{"n0.fed.example", "n1.fed.example", "*.fed.example"} {
			if w.IntN(2) == 0 {
				names = append(names, name)
			}
		}
		o.Owner = sharer(o.ID, strings.Join(names, " "), func(s *zone.Sharing) {
			s.Min = enough
			for range w.IntN(3) {
				s.Tiers = append(s.Tiers, zone.Tier{N: w.IntN(3), Label: []string{"", "x", "y"}[w.IntN(3)]})
			}
		})
		o.Retention = sharedRetention
	}
	w.build()
}

// restart makes a builder as after the start of a process, with what the owners had when it ended.
func (w *sharedWorld) restart() {
	for _, o := range w.owners {
		o.grace = w.at.Add(sharedGrace)
		if !o.known {
			clear(o.offers)
		} else if o.lost.IsZero() {
			o.lost = w.at
		}
		clear(o.fresh)
	}
	w.build()
}

// build makes a builder that knows what there is.
func (w *sharedWorld) build() {
	config := zone.Config{}
	for _, o := range w.owners {
		config.Owners = append(config.Owners, o.Owner)
	}
	serials := make(map[string]uint32)
	if w.b != nil {
		serials["fed.example."] = w.b.Publish(w.at).SOA("fed.example.").Serial
	}
	w.b = zonetest.NewBuilder(config, serials)
	for i, o := range w.owners {
		for name, s := range o.offers {
			if w.b.Put(i, s, o.generation); o.fresh[name] {
				w.b.Confirm(i, name, o.generation+1)
			}
		}
		w.tell(i)
	}
}

// tell passes on the status of an owner.
func (w *sharedWorld) tell(i int) {
	o := w.owners[i]
	s := zone.Status{Live: o.generation, Known: o.known, Grace: o.grace}
	if !o.lost.IsZero() {
		s.Live, s.Lost, s.Expires = o.generation+1, o.lost, o.lost.Add(sharedRetention)
	}
	w.b.SetStatus(i, s)
}

// service makes a service at one of the names.
func (w *sharedWorld) service(name string) *federation.Service {
	s := name + fmt.Sprintf(" n%d.fed.example", w.IntN(2))
	for range 1 + w.IntN(3) {
		s += fmt.Sprintf(" 192.0.2.%d@%d[%s]", 1+w.IntN(6), 80+w.IntN(2), []string{"x", "y", "z", "x,y"}[w.IntN(4)])
	}
	for _, id := range []string{"v0", "v1"}[w.IntN(2):] {
		s += fmt.Sprintf(" %s/%s[%s]", id, []string{"HTTP", "GRPC"}[w.IntN(2)], []string{"", "x", "q"}[w.IntN(3)])
	}
	of := service(s)
	of.Description, of.Instances[0].Description = fmt.Sprint("d", w.IntN(3)), fmt.Sprint("d", w.IntN(3))
	if w.IntN(4) == 0 {
		of.Instances = append(of.Instances, federation.Instance{Unnamed: true, Protocol: federation.TCP, Description: fmt.Sprint("d", w.IntN(3))})
	}
	if w.IntN(4) == 0 { // as many as one service may have
		labels := &of.Endpoints[0].Labels
		for i := len(*labels); i < federation.MaxLabels; i++ {
			*labels = append(*labels, fmt.Sprint("l", i))
		}
	}
	if prefix := w.IntN(9); w.IntN(40) == 0 { // more than half
		for i := range federation.MaxInstances/2 + 1 {
			of.Instances = append(of.Instances, federation.Instance{ID: fmt.Sprintf("%s-%d-%d", name, prefix, i), Protocol: federation.TCP})
		}
	}
	return of
}

func (w *sharedWorld) step() {
	i, name := w.IntN(len(w.owners)), fmt.Sprint("s", w.IntN(2))
	o := w.owners[i]
	switch w.IntN(22) {
	default:
		o.offers[name] = w.service(name)
		delete(o.fresh, name)
		w.b.Put(i, o.offers[name], o.generation)
	case 0, 1, 2, 3:
		delete(o.offers, name)
		delete(o.fresh, name)
		w.b.Remove(i, name)
	case 4, 5, 6, 7: // the owner comes, is lost, or comes back
		switch {
		case !o.known:
			o.known = true
		case o.lost.IsZero():
			o.lost = w.at
		default:
			o.lost = time.Time{}
			clear(o.fresh)
			o.generation++
			for name := range o.offers {
				w.b.Confirm(i, name, o.generation)
			}
		}
		w.tell(i)
	case 8, 9, 10, 11:
		w.at = w.at.Add(time.Duration(1+w.IntN(25)) * time.Second)
	case 12:
		switch leaves := len(w.owners) > 1; {
		case w.IntN(3) == 0 && len(w.owners) < 5:
			w.add()
		case w.IntN(2) == 0 && leaves:
			w.owners = slices.Delete(w.owners, i, i+1)
		}
		w.reload()
	case 13:
		w.restart()
	case 14, 15: // a catalog begins that is not complete
		if !o.lost.IsZero() && o.offers[name] != nil {
			o.fresh[name] = true
			w.b.Confirm(i, name, o.generation+1)
		}
	}
}

// sharedEndpoint is one endpoint of a name, with what all owners say of it.
type sharedEndpoint struct {
	rank   int // the best one
	sayers []int
}

// check publishes, and compares every answer.
func (w *sharedWorld) check(t *testing.T) {
	t.Helper()
	z := w.b.Publish(w.at)
	if _, synced := z.Synced("fed.example.", w.at); synced && w.IntN(8) == 0 {
		for rrs := range reply.Transfer(z, "fed.example.", w.at) {
			if len(rrs) == 0 {
				t.Fatal("an empty set is transferred")
			}
		}
	}
	for _, fqdn := range []string{"n0.fed.example.", "n1.fed.example."} {
		all := w.members(fqdn)
		members := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !w.shares(i, fqdn) })
		for _, label := range []string{"", "v0.", "v1."} {
			if len(all) > 0 && !w.shares(all[0], fqdn) {
				w.compare(t, z, label, fqdn, all[:1], false) // the group comes later
			} else {
				w.compare(t, z, label, fqdn, members, true)
			}
		}
	}
}

func (w *sharedWorld) shares(i int, fqdn string) bool {
	return slices.ContainsFunc(w.owners[i].Sharing.Names, func(p pattern.Name) bool { return p.Matches(origin(fqdn)) })
}

// stale reports whether an owner is lost and has not sent a service since.
func (o *sharedOwner) stale(s *federation.Service) bool { return !o.lost.IsZero() && !o.fresh[s.Name] }

// serviceAt returns what an owner has at a name, unless that has expired.
func (w *sharedWorld) serviceAt(i int, fqdn string) *federation.Service {
	o := w.owners[i]
	for _, name := range slices.Sorted(maps.Keys(o.offers)) {
		s := o.offers[name]
		if s.FQDN.String() == fqdn && !(o.stale(s) && o.lost.Add(sharedRetention).Sub(w.at) < time.Second) {
			return s
		}
	}
	return nil
}

// members returns the owners that have the name.
func (w *sharedWorld) members(fqdn string) (members []int) {
	for i := range w.owners {
		if w.serviceAt(i, fqdn) != nil {
			members = append(members, i)
		}
	}
	return members
}

// endpoints returns those of a name: an endpoint of an instance is what all owners say of it at the
// fqdn. Without any, the name does not exist.
func (w *sharedWorld) endpoints(label, fqdn string, members []int) map[string]*sharedEndpoint {
	known, of := w.all(fqdn, members), make(map[string]*sharedEndpoint)
	for _, i := range members {
		s := w.serviceAt(i, fqdn)
		some := s.Endpoints
		if label != "" {
			at := slices.IndexFunc(s.Instances, func(in federation.Instance) bool { return in.ID+"." == label })
			if at < 0 {
				continue
			}
			some = selected(s, &s.Instances[at])
		}
		for _, e := range some {
			key := fmt.Sprintf("%s %d", e.Address.String(), e.Port)
			of[key] = known[key]
		}
	}
	return of
}

func (w *sharedWorld) compare(t *testing.T, z *zone.Zone, label, fqdn string, members []int, shared bool) {
	t.Helper()
	endpoints := w.endpoints(label, fqdn, members)
	if len(endpoints) == 0 {
		if r := z.Lookup(label+fqdn, dns.TypeA, w.at); r.Kind == zone.Success {
			t.Fatalf("%s%s has records", label, fqdn)
		}
		return
	}
	last := w.lastRank(endpoints)
	var a, srv []string
	ttl := map[bool]int{false: 30, true: 30}
	stale := map[bool]bool{false: true, true: true}
	for key, e := range endpoints {
		ip, port, _ := strings.Cut(key, " ")
		priority := 0
		if shared {
			priority = e.rank
		}
		answered := !shared || e.rank <= last
		for _, i := range e.sayers {
			for _, addresses := range []bool{true, false} {
				if addresses && !answered {
					continue
				}
				if !w.owners[i].stale(w.serviceAt(i, fqdn)) {
					stale[addresses] = false
				} else {
					ttl[addresses] = min(ttl[addresses], int(w.owners[i].lost.Add(sharedRetention).Sub(w.at)/time.Second))
				}
			}
		}
		if answered && !slices.Contains(a, ip) {
			a = append(a, ip)
		}
		srv = append(srv, fmt.Sprintf("SRV %d 100 %s %s.addr.%s", priority, port, strings.ReplaceAll(ip, ".", "-"), fqdn))
	}
	for i := range a {
		a[i] = fmt.Sprintf("%d A %s", ttl[true], a[i])
	}
	for i := range srv {
		srv[i] = fmt.Sprintf("%d %s", ttl[false], srv[i])
	}
	for qtype, want := range map[string][]string{"A": a, "SRV": srv, "TXT": w.texts(label, fqdn, members, ttl[false])} {
		got := ask(z, label+fqdn, qtype, w.at)[1:]
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s%s %s at %s, of %v (-want +got):\n%s", label, fqdn, qtype, w.at.Sub(now), members, diff)
		}
		number, _ := typeOf(qtype)
		if r := z.Lookup(label+fqdn, number, w.at); r.Stale() != stale[qtype == "A"] {
			t.Fatalf("%s%s %s at %s: stale is %v", label, fqdn, qtype, w.at.Sub(now), r.Stale())
		}
	}
}

// texts returns the TXT records of a name: the service of the first owner, and each instance once,
// as the first owner says it that has it.
func (w *sharedWorld) texts(label, fqdn string, members []int, ttl int) (all []string) {
	var together federation.Service
	for n, i := range members {
		s := w.serviceAt(i, fqdn)
		if n == 0 {
			together = *s
			together.Instances = nil
		}
		for _, in := range s.Instances {
			if !slices.ContainsFunc(together.Instances, func(other federation.Instance) bool {
				return in.ID == other.ID && in.Unnamed == other.Unnamed && (!in.Unnamed || in.Protocol == other.Protocol)
			}) {
				together.Instances = append(together.Instances, in)
			}
		}
	}
	at := &owned{offer: &offer{service: &together}}
	for i := range together.Instances {
		if in := &together.Instances[i]; in.ID+"." == label {
			at.instance = in
		}
	}
	for _, txt := range texts(at) {
		rr := &dns.TXT{Hdr: dns.RR_Header{Name: label + fqdn, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: uint32(ttl)}, Txt: txt}
		all = append(all, data(label+fqdn, []dns.RR{rr})...)
	}
	return all
}

// all returns the endpoints of the fqdn.
func (w *sharedWorld) all(fqdn string, members []int) map[string]*sharedEndpoint {
	all := make(map[string]*sharedEndpoint)
	for _, i := range members {
		for _, e := range w.serviceAt(i, fqdn).Endpoints {
			key := fmt.Sprintf("%s %d", e.Address.String(), e.Port)
			if all[key] == nil {
				all[key] = &sharedEndpoint{rank: 1000}
			}
			of := all[key]
			of.sayers = append(of.sayers, i)
			of.rank = min(of.rank, w.rank(i, fqdn, e.Labels))
		}
	}
	return all
}

func (w *sharedWorld) rank(i int, fqdn string, labels []string) int {
	s := &w.owners[i].Sharing
	rank := 0
	for _, tier := range s.Tiers {
		if tier.Label == "" || slices.Contains(labels, tier.Label) {
			rank = tier.N
			break
		}
	}
	if w.owners[i].stale(w.serviceAt(i, fqdn)) {
		rank += 10
	}
	return rank
}

// lastRank returns up to which rank addresses are answered: the first at which enough endpoints are
// live, or all of them.
func (w *sharedWorld) lastRank(endpoints map[string]*sharedEndpoint) int {
	live := 0
	for rank := range 10 {
		for _, e := range endpoints {
			if e.rank == rank {
				live++
			}
		}
		if live >= w.owners[0].Sharing.Min {
			return rank
		}
	}
	return 1000
}

// FuzzShared is TestSharedOracle for a history made of bytes.
func FuzzShared(f *testing.F) {
	for seed := range uint64(8) {
		history := make([]byte, 1024)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range history {
			history[i] = byte(random.Uint32())
		}
		f.Add(history)
	}
	f.Fuzz(func(t *testing.T, history []byte) {
		w := newSharedWorldFrom(bytesSource{&history})
		for range 30 {
			w.step()
			w.check(t)
		}
	})
}

// TestSharedOracle compares what happens to random owners that share names with what should,
// also through reloads and restarts.
func TestSharedOracle(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds /= 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newSharedWorld(seed)
			for range 80 {
				w.step()
				if w.IntN(3) > 0 {
					w.check(t)
				}
			}
			for i := range w.owners {
				for _, name := range []string{"s0", "s1"} {
					w.b.Remove(i, name)
				}
			}
			w.b.Publish(w.at)
			for i := range w.owners {
				if f := faults(w.b, i); len(f) > 0 {
					t.Errorf("owner %d has faults %v without services", i, f)
				}
			}
		})
	}
}

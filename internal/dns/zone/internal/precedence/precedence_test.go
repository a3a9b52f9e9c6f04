package precedence_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const origin = "fed.example."

var now = time.Unix(1_800_000_000, 0)

// testWriter is a writer for three owners.
type testWriter struct {
	*precedence.Writer

	fqdns map[string]string // of services, by owner and name
}

func newTestWriter(zones func(name string) string) testWriter {
	return testWriter{precedence.NewWriter(3, zones), make(map[string]string)}
}

// oneZone has all names.
func oneZone(string) string { return origin }

// offered returns the key of fqdns.
func offered(owner int, name string) string { return fmt.Sprint(owner, " ", name) }

// put offers a service with one endpoint and one instance, instead of what the
// owner offered under its name before, and reports whether answers change.
func (w testWriter) put(owner int, name, fqdn, id string) bool {
	endpoint, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		panic(err)
	}
	s := &federation.Service{
		Name:      name,
		Endpoints: []federation.Endpoint{{Address: endpoint, Port: 80}},
		Instances: []federation.Instance{{ID: id, Protocol: federation.HTTP}},
	}
	offer := precedence.NewOffer(packed.PackService(s), s, fqdn+"."+origin, owner, func(_, _ string) subtree.Fault { return "" })
	offer.Generation = 1
	w.fqdns[offered(owner, name)] = offer.FQDN()
	return w.ExchangeOffer(offer.FQDN(), w.FindOffer(owner, offer.FQDN(), name), offer)
}

// remove takes an offer back, and reports whether answers change.
func (w testWriter) remove(owner int, name string) bool {
	old := w.FindOffer(owner, w.fqdns[offered(owner, name)], name)
	return w.ExchangeOffer(old.FQDN(), old, nil)
}

// holders returns who has each name, as owner/service, at a time.
func holders(t *precedence.Tree, at time.Time) map[string]string {
	all := make(map[string]string)
	for item := range t.All() {
		name, n := item.Name, &item.Value
		if o := t.Holder(origin, name, n, at); o != nil {
			all[strings.TrimSuffix(name, "."+origin)] = fmt.Sprintf("%d/%s", o.Owner, o.Service.Name())
		}
	}
	return all
}

// expect compares who has each name, and what the owners have not got.
func (w testWriter) expect(t *testing.T, at time.Time, want map[string]string, faults ...subtree.Faults) {
	t.Helper()
	tree := w.Publish()
	if d := cmp.Diff(want, holders(&tree, at)); d != "" {
		t.Errorf("holders (-want +got):\n%s", d)
	}
	for i, want := range faults {
		got := tree.OwnerFaults(i)
		if len(got) != len(want) || cmp.Diff(want, got) != "" && len(want) > 0 {
			t.Errorf("owner %d has the faults %v, want %v", i, got, want)
		}
	}
}

// TestInstanceAgainstService has a service at the name of an instance of a service
// further up: of one owner, of a later one and of an earlier one.
func TestInstanceAgainstService(t *testing.T) {
	conflict := subtree.Faults{subtree.FaultInstanceName: 1}
	for _, tt := range []struct {
		upper, lower int
		want         map[string]string
		faults       []subtree.Faults
	}{
		{0, 0, map[string]string{"web": "0/upper", "v1.web": "0/lower"}, []subtree.Faults{conflict, nil}},
		{0, 1, map[string]string{"web": "0/upper"}, []subtree.Faults{nil, conflict}},
		{1, 0, map[string]string{"web": "1/upper", "v1.web": "0/lower"}, []subtree.Faults{nil, conflict}},
	} {
		for _, upperFirst := range []bool{true, false} {
			w := newTestWriter(oneZone)
			puts := []func(){
				func() { w.put(tt.upper, "upper", "web", "v1") },
				func() { w.put(tt.lower, "lower", "v1.web", "i") },
			}
			if !upperFirst {
				slices.Reverse(puts)
			}
			for _, put := range puts {
				put()
			}
			w.expect(t, now, tt.want, tt.faults...)
			w.put(tt.upper, "upper", "web", "v2") // and the name is free
			w.expect(t, now, map[string]string{
				"web": fmt.Sprint(tt.upper, "/upper"), "v1.web": fmt.Sprint(tt.lower, "/lower"),
			}, nil, nil)
		}
	}
}

// TestExpiredOfferGivesWay checks that a stale offer keeps its names until less
// than a second of its life is left.
func TestExpiredOfferGivesWay(t *testing.T) {
	w := newTestWriter(oneZone)
	w.put(0, "upper", "web", "v1")
	w.put(1, "same", "web", "i")
	w.put(1, "lower", "v1.web", "i")
	expires := now.Add(time.Minute)
	if d := cmp.Diff([]string{origin}, w.SetLife(0, precedence.OfferLife{Live: 2, Expires: expires})); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	w.expect(t, expires.Add(-time.Second), map[string]string{"web": "0/upper"})
	w.expect(t, expires.Add(-time.Second+1), map[string]string{"web": "1/same", "v1.web": "1/lower"})

	// The owner is back and confirms its service.
	old := w.FindOffer(0, "web."+origin, "upper")
	if tree := w.Publish(); !tree.IsStale(old) {
		t.Error("the offer is not stale")
	}
	if !w.ExchangeOffer(old.FQDN(), old, old.WithGeneration(2)) {
		t.Error("a TTL changes, and no answer does")
	}
	w.expect(t, expires, map[string]string{"web": "0/upper"})
}

// TestNodesGoWithTheirOffers checks that the names above an offer exist as long as
// it does.
func TestNodesGoWithTheirOffers(t *testing.T) {
	w := newTestWriter(oneZone)
	w.put(0, "deep", "deep.a.b", "i")
	w.put(0, "web", "web.b", "i")
	nodes := func() (names []string) {
		tree := w.Publish()
		for item := range tree.All() {
			names = append(names, fmt.Sprint(item.Name, " ", item.Value.HasNodesBelow()))
		}
		slices.Sort(names)
		return names
	}
	want := []string{
		"a.b.fed.example. true", "b.fed.example. true", "deep.a.b.fed.example. false", "fed.example. true", "web.b.fed.example. false",
	}
	if d := cmp.Diff(want, nodes()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	w.remove(0, "deep")
	if d := cmp.Diff([]string{"b.fed.example. true", "fed.example. true", "web.b.fed.example. false"}, nodes()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	w.remove(0, "web")
	if got := nodes(); len(got) > 0 {
		t.Errorf("%v are left", got)
	}
}

// TestLinkedNamesStay has the names above a zone within another: they exist
// without an offer, and stay when offers there come and go.
func TestLinkedNamesStay(t *testing.T) {
	w := newTestWriter(oneZone)
	w.LinkParents("inner.x."+origin, origin)
	names := func() (names []string) {
		tree := w.Publish()
		for item := range tree.All() {
			names = append(names, fmt.Sprint(strings.TrimSuffix(item.Name, "."+origin), " ", item.Value.HasNodesBelow()))
		}
		slices.Sort(names)
		return names
	}
	want := names()
	if d := cmp.Diff([]string{origin + " true", "x true"}, want); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, fqdn := range []string{"x", "y.x", "z.y.x", "x"} {
		w.put(0, "s", fqdn, "i")
		w.expect(t, now, map[string]string{fqdn: "0/s"})
		w.remove(0, "s")
		if d := cmp.Diff(want, names()); d != "" {
			t.Errorf("after an offer at %s (-want +got):\n%s", fqdn, d)
		}
	}
}

// TestChainOfClaims has three services one below the other, each at the name of
// the instance of the one above. The one in the middle is published nowhere while
// the first is alive, and so has no claim to the name of the third.
func TestChainOfClaims(t *testing.T) {
	w := newTestWriter(oneZone)
	w.put(0, "top", "web", "a")
	w.put(1, "middle", "a.web", "b")
	w.put(2, "bottom", "b.a.web", "i")
	conflict := subtree.Faults{subtree.FaultInstanceName: 1}
	expires := now.Add(time.Minute)
	w.SetLife(0, precedence.OfferLife{Live: 2, Expires: expires})
	w.expect(t, now, map[string]string{"web": "0/top", "b.a.web": "2/bottom"}, nil, conflict, conflict)
	w.expect(t, expires, map[string]string{"a.web": "1/middle"}, nil, conflict, conflict)
	w.remove(1, "middle")
	w.expect(t, now, map[string]string{"web": "0/top", "b.a.web": "2/bottom"}, nil, nil, nil)
	w.remove(0, "top")
	w.expect(t, now, map[string]string{"b.a.web": "2/bottom"}, nil, nil, nil)
}

// TestClaimOfTheFirstOwner has two services above a name that both have it. What
// keeps a third from being published there is whichever of them comes first, and
// the claim of the other is there when that one goes.
func TestClaimOfTheFirstOwner(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		w := newTestWriter(oneZone)
		puts := []func(){
			func() { w.put(0, "upper", "b", "v1.a") }, // has v1.a.b and a.b
			func() { w.put(1, "lower", "a.b", "v1") }, // has v1.a.b; a.b is the upper one's
			func() { w.put(2, "third", "v1.a.b", "i") },
		}
		for _, i := range order {
			puts[i]()
		}
		conflict := subtree.Faults{subtree.FaultInstanceName: 1}
		w.expect(t, now, map[string]string{"b": "0/upper"}, nil, conflict, conflict)
		w.remove(0, "upper")
		w.expect(t, now, map[string]string{"a.b": "1/lower"}, nil, nil, conflict)
		w.remove(1, "lower")
		w.expect(t, now, map[string]string{"v1.a.b": "2/third"}, nil, nil, nil)
		if t.Failed() {
			t.Fatalf("in the order %v", order)
		}
	}
}

// TestStaleChangesAreTold checks of which zones SetLife tells: those where something that is
// published becomes stale or live.
func TestStaleChangesAreTold(t *testing.T) {
	w := newTestWriter(func(name string) string {
		return name[strings.LastIndex(strings.TrimSuffix(name, "."+origin), ".")+1:]
	})
	w.put(0, "web", "web", "i")
	w.put(1, "web", "web", "i") // shadowed
	w.put(1, "a", "a.one", "i")
	w.put(1, "b", "b.one", "i")
	w.put(1, "c", "c.two", "i")
	w.put(1, "gone", "gone.three", "i")
	w.remove(1, "gone")
	expect := func(live uint64, want ...string) {
		t.Helper()
		told := w.SetLife(1, precedence.OfferLife{Live: live})
		for i, zone := range told {
			told[i] = strings.TrimSuffix(zone, "."+origin)
		}
		slices.Sort(told)
		if d := cmp.Diff(want, told); d != "" {
			t.Errorf("live from %d on (-want +got):\n%s", live, d)
		}
	}
	expect(1) // generation 1 was not stale, and is not
	expect(2, "one", "two")
	expect(3) // it is stale already
	expect(2)
	for _, at := range []string{"b.one." + origin, "c.two." + origin} {
		old := w.FindOffer(1, at, at[:1])
		w.ExchangeOffer(at, old, old.WithGeneration(2))
	}
	expect(1, "one")
	expect(3, "one", "two")
	w.remove(0, "web")
	expect(2, "one", "two")
	expect(1, "one", "web") // what was shadowed is published
}

// TestExchangeTellsChanges has every change of an offer with what ExchangeOffer says of
// it.
func TestExchangeTellsChanges(t *testing.T) {
	w := newTestWriter(oneZone)
	if !w.put(0, "s", "web", "i") || !w.put(0, "s", "web", "j") {
		t.Error("another service changes no answer")
	}
	old := w.FindOffer(0, "web."+origin, "s")
	if w.ExchangeOffer(old.FQDN(), old, old.WithGeneration(7)) {
		t.Error("another live generation changes answers")
	}
	if got := w.FindOffer(0, "web."+origin, "s"); got == old || got.Generation != 7 || got.Service != old.Service {
		t.Errorf("the offer is of generation %d", got.Generation)
	}
	w.SetLife(0, precedence.OfferLife{Live: 8})
	old = w.FindOffer(0, "web."+origin, "s")
	if w.ExchangeOffer(old.FQDN(), old, old.WithGeneration(3)) {
		t.Error("another stale generation changes answers")
	}
	old = w.FindOffer(0, "web."+origin, "s")
	if !w.ExchangeOffer(old.FQDN(), old, old.WithGeneration(8)) {
		t.Error("a stale offer that becomes live changes no answer")
	}
}

// TestWeight compares the estimate of an offer's memory with what many of them take:
// at least half of it, so that a bound by weight bounds memory.
func TestWeight(t *testing.T) {
	for name, size := range map[string]int{"one": 1, "many": 100} {
		t.Run(name, func(t *testing.T) {
			n := 20_000 / size // so many that nothing else of the process counts
			offers := make([]*precedence.Offer, n)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range offers {
				s := &federation.Service{Name: fmt.Sprint("service-", i), Description: strings.Repeat("x", size)}
				for j := range size {
					address := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})
					endpoint := must.Get(federation.ParseAddress(address.String()))(t)
					s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: endpoint, Port: 80})
					s.Instances = append(s.Instances, federation.Instance{ID: fmt.Sprint("i", j), Protocol: federation.HTTP})
				}
				offers[i] = precedence.NewOffer(packed.PackService(s), s, s.Name+"."+origin, 0, func(_, _ string) subtree.Fault { return "" })
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			taken, weight := int(after.HeapAlloc-before.HeapAlloc), 0
			for _, o := range offers {
				weight += o.EstimatedSize()
			}
			t.Logf("%d octets an offer, estimated as %d", taken/n, weight/n)
			if weight < taken/2 || weight > 8*taken {
				t.Errorf("%d octets are estimated as %d", taken, weight)
			}
		})
	}
}

// TestConflictsAreCounted has services come, change and go at an fqdn, of which there are
// sometimes many, and below it. What is not published is counted as it is found one by one.
func TestConflictsAreCounted(t *testing.T) {
	w, r := newTestWriter(oneZone), rand.New(rand.NewPCG(3, 4))
	below := func() string {
		return []string{"a", "b", "c", "d", "e.a", "e.b", "e.c", "f.d", "f.e.a", "addr"}[r.IntN(10)]
	}
	offered := make(map[[2]int]string) // fqdn
	for step := range 6000 {
		key := [2]int{r.IntN(3), r.IntN(40)}
		name, growing := fmt.Sprint("s", key[1]), step/1000%2 == 0
		switch fqdn, ok := offered[key]; {
		case ok && r.IntN(4) == 0:
			w.put(key[0], name, fqdn, below())
		case !ok && growing == (r.IntN(8) > 0):
			if fqdn = "web"; r.IntN(3) == 0 {
				fqdn = below() + ".web"
			}
			w.put(key[0], name, fqdn, below())
			offered[key] = fqdn
		case ok && growing == (r.IntN(8) == 0):
			w.remove(key[0], name)
			delete(offered, key)
		}
		if step%10 == 0 {
			w.compareConflicts(t, step)
		}
	}
}

// compareConflicts compares the conflicts of instances that are counted with those that are found one
// by one.
func (w testWriter) compareConflicts(t *testing.T, step int) {
	t.Helper()
	tree, want := w.Publish(), [3]int{}
	for item := range tree.All() {
		name, n := item.Name, &item.Value
		offers := n.AppendOffers(nil)
		for _, o := range offers {
			faults := tree.OfferFaults(o)
			want[o.Owner] += faults[subtree.FaultInstanceName]
		}
		if len(offers) == 0 {
			continue
		}
		first := offers[0]
		for up := name; up != origin; {
			up = domain.Parent(up)
			if slices.ContainsFunc(tree.Node(up).AppendOffers(nil), func(o *precedence.Offer) bool {
				return o.Owner < first.Owner && o.Subtree.HasLabels(domain.RelativeLabels(name, up))
			}) {
				want[first.Owner]++
				break
			}
		}
	}
	for owner, n := range want {
		if got := tree.OwnerFaults(owner)[subtree.FaultInstanceName]; got != n {
			t.Fatalf("step %d: owner %d has %d conflicts of instances, want %d", step, owner, got, n)
		}
	}
}

// A name with many services is as one with few: whoever comes first has it, each of the
// others counts, and answers change only with the first.
func TestManyServicesOfOneFQDN(t *testing.T) {
	w, r := newTestWriter(oneZone), rand.New(rand.NewPCG(1, 2))
	offered := make(map[[2]int]bool)
	first := "" // who has the name
	for step := range 600 {
		key := [2]int{r.IntN(3), r.IntN(40)}
		name := fmt.Sprintf("s%02d", key[1])
		var changed bool
		if offered[key] && r.IntN(2) == 0 {
			changed = w.remove(key[0], name)
			delete(offered, key)
		} else {
			changed = w.put(key[0], name, "web", "i")
			offered[key] = true
		}
		keys := slices.SortedFunc(maps.Keys(offered), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
		var want, got []string
		counts := [3]int{}
		for _, k := range keys {
			want = append(want, fmt.Sprintf("%d/s%02d", k[0], k[1]))
			counts[k[0]]++
		}
		before := first
		if first = ""; len(keys) > 0 {
			first = want[0]
			counts[keys[0][0]]--
		}
		if changed != (first != before) {
			t.Fatalf("step %d: answers change: %v, as %q had the name before %q", step, changed, before, first)
		}
		tree := w.Publish()
		n := tree.Node("web." + origin)
		for _, o := range n.AppendOffers(nil) {
			got = append(got, fmt.Sprintf("%d/%s", o.Owner, o.Service.Name()))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("step %d: the offers are %v, want %v", step, got, want)
		}
		for owner, count := range counts {
			if got := tree.OwnerFaults(owner)[precedence.FaultFQDN]; got != count {
				t.Fatalf("step %d: owner %d has %d conflicts, want %d", step, owner, got, count)
			}
		}
	}
}

// TestExpiredClaim has an owner that has expired, whose instance has the name of a service.
// The owner that comes next has that service, and an instance of the same name: its own
// instance does not take the name from its service.
func TestExpiredClaim(t *testing.T) {
	w := newTestWriter(oneZone)
	w.put(0, "upper", "web", "a")
	w.put(1, "lower", "web", "a")
	w.put(1, "inner", "a.web", "i")
	expires := now.Add(time.Minute)
	w.SetLife(0, precedence.OfferLife{Live: 2, Expires: expires})
	tree := w.Publish()
	if d := cmp.Diff(map[string]string{"web": "0/upper"}, holders(&tree, now)); d != "" {
		t.Errorf("before the end (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"web": "1/lower", "a.web": "1/inner"}, holders(&tree, expires)); d != "" {
		t.Errorf("after the end (-want +got):\n%s", d)
	}
}

package precedence_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/zone/subtree"
)

const origin = "fed.example."

var now = time.Unix(1_800_000_000, 0)

// world is a writer for three owners of one zone.
type world struct{ *precedence.Writer }

func newWorld() world {
	return world{precedence.NewWriter(3, func(string) string { return origin })}
}

// put offers a service with one endpoint and one instance, instead of what the
// owner offered under its name before, and reports whether answers change.
func (w world) put(owner int, name, fqdn, id string) bool {
	endpoint, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		panic(err)
	}
	s := &federation.Service{
		Name:      name,
		Endpoints: []federation.Endpoint{{Address: endpoint, Port: 80}},
		Instances: []federation.Instance{{ID: id, Protocol: federation.HTTP}},
	}
	offer := precedence.NewOffer(s, fqdn+"."+origin, owner, 1, func(_, _ string) subtree.Fault { return "" })
	return w.Exchange(offer.FQDN(), w.Offer(owner, name), offer)
}

// remove takes an offer back, and reports whether answers change.
func (w world) remove(owner int, name string) bool {
	old := w.Offer(owner, name)
	return w.Exchange(old.FQDN(), old, nil)
}

// holders returns who has each name, as owner/service, at a time.
func holders(t *precedence.Tree, at time.Time) map[string]string {
	all := make(map[string]string)
	for name, n := range t.All() {
		if o := t.Holder(origin, name, n, at); o != nil {
			all[strings.TrimSuffix(name, "."+origin)] = fmt.Sprintf("%d/%s", o.Owner, o.Service.Name)
		}
	}
	return all
}

// expect compares who has each name, and what the owners have not got.
func (w world) expect(t *testing.T, at time.Time, want map[string]string, faults ...subtree.Faults) {
	t.Helper()
	tree := w.Publish()
	if d := cmp.Diff(want, holders(&tree, at)); d != "" {
		t.Errorf("holders (-want +got):\n%s", d)
	}
	for i, want := range faults {
		got := maps.Clone(w.Faults(i))
		maps.DeleteFunc(got, func(_ subtree.Fault, n int) bool { return n == 0 })
		if len(got) != len(want) || cmp.Diff(want, got) != "" && len(want) > 0 {
			t.Errorf("owner %d has the faults %v, want %v", i, got, want)
		}
	}
}

// TestFirstOwnerHasTheName puts three offers of one fqdn in every order, and
// takes them back one by one.
func TestFirstOwnerHasTheName(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		w := newWorld()
		best := 3
		for _, owner := range order {
			if changed := w.put(owner, "s", "web", "i"); changed != (owner < best) {
				t.Errorf("order %v: owner %d changes answers: %v", order, owner, changed)
			}
			best = min(best, owner)
		}
		shadowed := subtree.Faults{precedence.FaultFQDN: 1}
		w.expect(t, now, map[string]string{"web": "0/s"}, nil, shadowed, shadowed)
		if w.remove(1, "s") {
			t.Errorf("order %v: removing what is not published changes answers", order)
		}
		if !w.remove(0, "s") {
			t.Errorf("order %v: removing what is published changes no answer", order)
		}
		w.expect(t, now, map[string]string{"web": "2/s"}, nil, nil, nil)
		w.remove(2, "s")
		w.expect(t, now, map[string]string{})
	}
}

// TestSmallerServiceNameHasTheName has two services of one owner.
func TestSmallerServiceNameHasTheName(t *testing.T) {
	w := newWorld()
	w.put(0, "b", "web", "i")
	w.put(0, "a", "web", "i")
	w.expect(t, now, map[string]string{"web": "0/a"}, subtree.Faults{precedence.FaultFQDN: 1})
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
			w := newWorld()
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
	w := newWorld()
	w.put(0, "upper", "web", "v1")
	w.put(1, "same", "web", "i")
	w.put(1, "lower", "v1.web", "i")
	expires := now.Add(time.Minute)
	var changed []string
	w.SetLife(0, precedence.Life{Live: 2, Expires: expires}, func(fqdn string) bool {
		changed = append(changed, fqdn)
		return true
	})
	if d := cmp.Diff([]string{"web." + origin}, changed); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	w.expect(t, expires.Add(-time.Second), map[string]string{"web": "0/upper"})
	w.expect(t, expires.Add(-time.Second+1), map[string]string{"web": "1/same", "v1.web": "1/lower"})

	// The owner is back and confirms its service.
	old := w.Offer(0, "upper")
	if tree := w.Publish(); !tree.Stale(old) {
		t.Error("the offer is not stale")
	}
	if !w.Exchange(old.FQDN(), old, old.Confirmed(2)) {
		t.Error("a TTL changes, and no answer does")
	}
	w.expect(t, expires, map[string]string{"web": "0/upper"})
}

// TestNodesGoWithTheirOffers checks that the names above an offer exist as long as
// it does.
func TestNodesGoWithTheirOffers(t *testing.T) {
	w := newWorld()
	w.put(0, "deep", "deep.a.b", "i")
	w.put(0, "web", "web.b", "i")
	nodes := func() (names []string) {
		tree := w.Publish()
		for name, n := range tree.All() {
			names = append(names, fmt.Sprint(name, " ", n.Above()))
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

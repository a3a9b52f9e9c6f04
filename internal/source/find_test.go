package source

import (
	"cmp"
	"log/slog"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// TestFind looks for services of a catalog, before and after another source hides one.
func TestFind(t *testing.T) {
	c := NewCatalog(Config{
		Registry: registry.New(), Logger: slog.New(slog.DiscardHandler),
		Sources: []Entry{{Name: "before", Source: newPuppet()}, {Name: "first", Source: newPuppet()}},
	})
	expect := func(when string, published []string, want ...FoundService) {
		t.Helper()
		found := c.Find(func(s *wire.EncodedService) bool { return s.FQDN() == "same.example.org" })
		slices.SortFunc(found, func(a, b FoundService) int { return cmp.Compare(a.Source, b.Source) })
		if d := gocmp.Diff(want, found, gocmp.Comparer((*wire.EncodedService).Equal)); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
		var got []string
		for _, f := range c.Find(func(*wire.EncodedService) bool { return true }) {
			if f.Hidden == "" {
				got = append(got, f.Service.Name())
			}
		}
		if slices.Sort(got); !slices.Equal(got, published) {
			t.Errorf("%s: %q are published, expected %q", when, got, published)
		}
	}
	expect("at first", nil)
	mine, other, before := encoded("one/same", "same", 0), encoded("one/other", "other", 0), encoded("two/same", "same", 0)
	c.parts[1].Replace([]*wire.EncodedService{mine, other})
	expect("waiting", nil, FoundService{Service: mine, Source: "first", Hidden: "before comes first in the catalog, may have its name or its fqdn, and has not yet said what it has"})
	c.parts[0].Replace(nil)
	expect("published", []string{"one/other", "one/same"}, FoundService{Service: mine, Source: "first"})
	c.parts[0].Update([]*wire.EncodedService{before}, nil)
	expect("hidden", []string{"one/other", "two/same"}, FoundService{Service: before, Source: "before"},
		FoundService{Service: mine, Source: "first", Hidden: `service "two/same" of before has its name or its fqdn, and comes first in the catalog`})
}

package ownreport

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
)

// A status that is read while a reload adds a catalog does not part the catalog from its
// journal. One that is gone loses it.
func TestJournalOfANewCatalog(t *testing.T) {
	r := New("test")
	r.Observe("")
	before := r.observed
	catalogs := map[string]serve.Catalog{"": {}}
	observer := r.Observe("new.example")
	r.forget(catalogs, before)
	observer.Changed(3)
	if j := r.recentEvents("new.example"); j != observer {
		t.Error("nobody reads what the catalog's observer notes")
	}
	r.forget(catalogs, r.observed)
	if _, known := r.events["new.example"]; known || len(r.events) != 1 {
		t.Errorf("%d journals, for one catalog", len(r.events))
	}
}

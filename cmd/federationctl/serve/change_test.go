package serve

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestAdmit changes who may subscribe. While an edit is put in force, those may who could
// before it and shall after it.
func TestAdmit(t *testing.T) {
	ids := func(names ...string) (ids []federation.ID) {
		for _, name := range names {
			ids = append(ids, must.Get(federation.ParseID(name))(t))
		}
		return ids
	}
	p := &Publisher{server: must.Get(owner.New(owner.Config{
		Catalogs: map[string]*registry.Registry{"": registry.New()}, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler),
	}))(t)}
	take := func(of ...string) {
		p.fileIDs = ids(of...)
		p.setAllowed()
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for id := range p.admitted {
			got = append(got, id.String())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected identities (-want +got):\n%s", diff)
		}
	}
	p.setAllowed()
	expect()
	p.applyEdit(func() {
		p.config.Allow.IDs = ids("goes", "stays")
		p.setAllowed()
		expect()
		take("file", "old-file")
		expect()
	})
	expect("file", "goes", "old-file", "stays")
	p.applyEdit(func() {
		take("file", "new-file")
		expect("file", "goes", "stays")
		p.config.Allow.IDs = ids("new", "stays")
		p.setAllowed()
		expect("file", "stays")
	})
	expect("file", "new", "new-file", "stays")
}

package serve

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestAllowanceChanges changes who may subscribe in two steps: first those lose it who
// do, and then the others get it.
func TestAllowanceChanges(t *testing.T) {
	id := func(name string) federation.ID {
		t.Helper()
		return must.Get(federation.ParseID(name))(t)
	}
	var told []string
	set := func(ids []federation.ID) {
		text := ""
		for _, id := range ids {
			text += id.String() + " "
		}
		told = append(told, text)
	}
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("unexpected identities (-want +got):\n%s", diff)
		}
		told = nil
	}

	first := &allowance{}
	first.update([]federation.ID{id("file"), id("old-file")})
	expect()
	first.enforce([]federation.ID{id("stays"), id("goes")}, set)
	expect("stays goes file old-file ")
	first.update([]federation.ID{id("file")})
	expect("stays goes file ")

	// Another file, which names one that the configuration has named.
	second := &allowance{}
	second.update([]federation.ID{id("goes"), id("new-file")})
	first.narrow([]federation.ID{id("stays"), id("new")}, second)
	expect("stays goes ")
	first.update([]federation.ID{id("file"), id("too-late")})
	expect()
	second.enforce([]federation.ID{id("stays"), id("new")}, set)
	expect("stays new goes new-file ")

	// The same file, which changes meanwhile.
	second.narrow([]federation.ID{id("newer"), id("new")}, second)
	expect("new goes new-file ")
	second.update([]federation.ID{id("goes")})
	expect()
	second.enforce([]federation.ID{id("newer"), id("new")}, set)
	expect("newer new goes ")
}

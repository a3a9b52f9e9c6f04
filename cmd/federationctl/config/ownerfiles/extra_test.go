package ownerfiles

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestCatalogOf reads what watch prints.
func TestCatalogOf(t *testing.T) {
	text := `{"op":"upsert","name":"a","service":{"x":1}}
{"op":"upsert","name":"b","service":{"x":2}}
{"op":"end"}
{"op":"upsert","name":"a","service":{"x":3}}
{"op":"delete","name":"b"}
{"op":"skip","name":"c","service":{"x":5}}
{"op":"upsert","name":"c","service":{"x":4}}
`
	got := must.Get(catalogOf([]byte(text)))(t)
	if diff := cmp.Diff("{\"services\": [\n\n\n{\"x\":3}\n\n\n,{\"x\":4}\n]}\n", string(got)); diff != "" {
		t.Errorf("unexpected catalog (-want +got):\n%s", diff)
	}
	for text, want := range map[string]bool{text: true, `{"op":"end"}`: true, `{"services":[]}`: false, "services: []": false, "": false, `{"services":[`: false} {
		if got := isWatched([]byte(text)); got != want {
			t.Errorf("%q is printed by watch: %v, expected %v", text, got, want)
		}
	}
}

// TestMistakesOnce counts a mistake once that two configurations have in common.
func TestMistakesOnce(t *testing.T) {
	var all, one MistakesError
	one.in("a", problem.Problem{Line: 1, Rule: "r"}, problem.Problem{Line: 2, Rule: "r"})
	for range 2 {
		if !all.Take(one.Err()) || !all.Take(nil) {
			t.Error("Take does not take mistakes")
		}
	}
	if got, want := all.Err().Error(), "problems found: 2; fix them and try again"; got != want {
		t.Errorf("the error is %q, expected %q", got, want)
	}
	if all.Take(federation.ErrNameTooLong) {
		t.Error("Take takes another error")
	}
}

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDependents(t *testing.T) {
	const test = "\nimport \"testing\"\nfunc TestPasses(t *testing.T) {}\n"
	dir := module(t, map[string]string{
		"federation/a/a.go":          "package a",
		"federation/a/a_test.go":     "package a" + test,
		"federation/a/in/in_test.go": "package in" + test,
		"federation/ab/ab_test.go":   "package ab" + test,
		"federation/far/far.go":      "package far\nimport _ \"example/federation/near\"",
		"federation/far/far_test.go": "package far" + test,
		"federation/near/near.go":    "package near\nimport _ \"example/federation/a\"",
		"federation/of/of_test.go":   "package of\nimport _ \"example/federation/a\"" + test,
		"plugin/plugin_test.go":      "package plugin" + test,
	})
	for wing, want := range map[string][]string{
		"a":      {"example/federation/a", "example/federation/a/in", "example/federation/far", "example/federation/of"},
		"near":   {"example/federation/far"},
		"plugin": {"example/plugin"},
	} {
		got, err := dependents(dir, wing)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, packages (-want +got):\n%s", wing, err, diff)
		}
	}
	for wing, want := range map[string]string{
		"b":  `wing "b": there is no such folder in federation, nor beside it`,
		"..": `wing "..": there is no such folder in federation, nor beside it`,
	} {
		if got, err := dependents(dir, wing); err == nil || err.Error() != want {
			t.Errorf("%s: %v, %v, want %s", wing, got, err, want)
		}
	}
}

// The daily loop of this repository has what a change can break, and not much else.
func TestWings(t *testing.T) {
	const own = "github.com/hamlet-federation/coredns-federation/"
	for wing, want := range map[string]struct{ in, out []string }{
		"owner": {
			[]string{"federation/owner", "federation/owner/gate", "federation/source/relay", "cmd/federationctl/serve"},
			[]string{"federation/dns/zone", "federation/policy", "plugin"},
		},
		"plugin": {[]string{"plugin"}, []string{"federation/owner", "federation/dns/zone"}},
	} {
		got, err := dependents("../../..", wing)
		if err != nil {
			t.Error(err)
		}
		for _, name := range want.in {
			if !slices.Contains(got, own+name) {
				t.Errorf("%s: %s is not among %q", wing, name, got)
			}
		}
		for _, name := range want.out {
			if slices.Contains(got, own+name) {
				t.Errorf("%s: %s is selected, and does not import it", wing, name)
			}
		}
	}
}

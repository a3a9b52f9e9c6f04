package imports_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/imports"
	"github.com/hamlet-federation/coredns-federation/federation/pattern"
)

// filter returns a filter of names, and of labels, which have an '='.
func filter(t *testing.T, texts string) (f imports.Filter) {
	t.Helper()
	for text := range strings.FieldsSeq(texts) {
		if strings.Contains(text, "=") {
			label, err := pattern.ParseLabel(text)
			if err != nil {
				t.Fatal(err)
			}
			f.Labels = append(f.Labels, label)
			continue
		}
		name, err := pattern.ParseName(text)
		if err != nil {
			t.Fatal(err)
		}
		f.Names = append(f.Names, name)
	}
	return f
}

// service returns a service with labels.
func service(t *testing.T, name string, labels ...string) *federation.Service {
	t.Helper()
	fqdn, err := federation.ParseFQDN(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &federation.Service{FQDN: fqdn}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		s.Labels = append(s.Labels, federation.Pair{Key: key, Value: value})
	}
	return s
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		filter string
		name   string
		labels []string // sorted
		want   bool
	}{
		{"", "web.example", nil, true},
		{"web.example", "web.example", nil, true},
		{"web.example", "www.web.example", nil, false},
		{"*.pay.example web.example", "a.b.pay.example", nil, true},
		{"*.pay.example web.example", "web.example", nil, true},
		{"*.pay.example web.example", "pay.example", nil, false},
		{"* web.example", "pay.example", nil, true},
		{"tier=public", "web.example", []string{"team=dns", "tier=public"}, true},
		{"tier=public", "web.example", []string{"team=dns", "tier=private"}, false},
		{"tier=public", "web.example", nil, false},
		{"tier=*", "web.example", []string{"tier=private"}, true},
		{"tier=public team=dns", "web.example", []string{"team=dns", "tier=public"}, true},
		{"tier=public team=dns", "web.example", []string{"team=web", "tier=public"}, false},
		{"tier=public *.pay.example", "a.pay.example", []string{"tier=public"}, true},
		{"tier=public *.pay.example", "a.example", []string{"tier=public"}, false},
		{"tier=public *.pay.example", "a.pay.example", []string{"tier=private"}, false},
	} {
		if got := filter(t, tt.filter).Matches(service(t, tt.name, tt.labels...)); got != tt.want {
			t.Errorf("%q matches %s %v: %v, want %v", tt.filter, tt.name, tt.labels, got, tt.want)
		}
		if got, want := filter(t, tt.filter).IsZero(), tt.filter == ""; got != want {
			t.Errorf("%q is zero: %v", tt.filter, got)
		}
	}
}

func TestCovered(t *testing.T) {
	for _, tt := range []struct {
		filter string
		others []string
		want   bool
	}{
		{"", nil, false},
		{"", []string{""}, true},
		{"", []string{"*"}, true},
		{"*", []string{""}, true},
		{"", []string{"*.example"}, false},
		{"*.pay.example", []string{"*.example"}, true},
		{"*.pay.example", []string{"pay.example"}, false},
		{"a.example b.example", []string{"a.example", "b.example"}, true},
		{"a.example b.example", []string{"a.example", "b.example tier=public"}, false},
		{"a.example tier=public", []string{"a.example"}, true},
		{"a.example", []string{"a.example tier=public"}, false},
		{"tier=public", []string{"tier=*"}, true},
		{"tier=*", []string{"tier=public"}, false},
		{"tier=public team=dns", []string{"team=dns"}, true},
		{"tier=public", []string{"team=dns", "tier=public team=dns"}, false},
	} {
		var others []imports.Filter
		for _, text := range tt.others {
			others = append(others, filter(t, text))
		}
		if got := filter(t, tt.filter).Covered(others); got != tt.want {
			t.Errorf("%q is covered by %q: %v, want %v", tt.filter, tt.others, got, tt.want)
		}
	}
}

// What is covered matches nothing that the others do not match.
func TestCoveredMatchesNothingElse(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"*", "example", "*.example", "a.example", "*.a.example", "b.a.example", "x=1", "x=*", "y=1", "y=*"}
	text := func() string {
		var list []string
		for _, part := range parts {
			if random.IntN(4) == 0 {
				list = append(list, part)
			}
		}
		return strings.Join(list, " ")
	}
	var services []*federation.Service
	for _, name := range []string{"example", "a.example", "b.a.example", "c.b.a.example", "other"} {
		for _, labels := range [][]string{nil, {"x=1"}, {"x=2"}, {"x=1", "y=1"}, {"x=2", "y=1"}, {"y=2"}} {
			services = append(services, service(t, name, labels...))
		}
	}
	covered := 0
	for range 20_000 {
		f, one, two := text(), text(), text()
		others := []imports.Filter{filter(t, one), filter(t, two)}
		if !filter(t, f).Covered(others) {
			continue
		}
		covered++
		for _, s := range services {
			if filter(t, f).Matches(s) && !others[0].Matches(s) && !others[1].Matches(s) {
				t.Fatalf("%q is covered by %q and %q, but %s is not", f, one, two, fmt.Sprint(s.FQDN, s.Labels))
			}
		}
	}
	if covered < 1000 {
		t.Errorf("only %d are covered", covered)
	}
}

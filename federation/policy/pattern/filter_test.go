package pattern_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// filter returns a filter of names, and of labels, which have an '='.
func filter(t *testing.T, texts string) (f pattern.Filter) {
	t.Helper()
	for text := range strings.FieldsSeq(texts) {
		if strings.Contains(text, "=") {
			label := must.Get(pattern.ParseLabel(text))(t)
			f.Labels = append(f.Labels, label)
			continue
		}
		name := must.Get(pattern.ParseName(text))(t)
		f.Names = append(f.Names, name)
	}
	return f
}

// service returns a service with labels.
func service(t *testing.T, name string, labels ...string) *federation.Service {
	t.Helper()
	fqdn := must.Get(federation.ParseFQDN(name))(t)
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

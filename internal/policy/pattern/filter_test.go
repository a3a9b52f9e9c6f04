package pattern_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		filter, fqdn string
		want         bool
	}{
		{"", "web.example", true},
		{"web.example", "web.example", true},
		{"web.example", "www.web.example", false},
		{"*.pay.example web.example", "a.b.pay.example", true},
		{"*.pay.example web.example", "web.example", true},
		{"*.pay.example web.example", "pay.example", false},
		{"* web.example", "pay.example", true},
	} {
		var filter pattern.NameFilter
		for text := range strings.FieldsSeq(tt.filter) {
			filter = append(filter, must.Get(pattern.ParseName(text))(t))
		}
		if got := filter.Matches(services.FQDN(tt.fqdn)); got != tt.want {
			t.Errorf("%q matches %s: %v, want %v", tt.filter, tt.fqdn, got, tt.want)
		}
	}
}

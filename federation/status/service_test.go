package status

import (
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestMatches(t *testing.T) {
	s := &federation.Service{
		Name: "web", FQDN: must.Get(federation.ParseFQDN("Shop.fed.example"))(t), Tags: []string{"blue"}, Labels: federation.Pairs(map[string]string{"team": "Sales"}),
		Endpoints: []federation.Endpoint{
			{Address: must.Get(federation.ParseAddress("192.0.2.17"))(t), Port: 443, Labels: []string{"west"}},
			{Address: must.Get(federation.ParseAddress("host.example"))(t), Port: 80},
		},
		Instances: []federation.Instance{{ID: "v2", Metadata: federation.Pairs(map[string]string{"path": "/x"})}},
	}
	for text, want := range map[string]bool{
		"": true, "WEB": true, "op.fed": true, "blue": true, "team=sales": true, "sales": true, "2.0.2.1": true, "192.0.2.17:443": true, "west": true,
		"host.example:80": true, "v2": true, "path=/": true, " web  west ": true, "web east": false, "team=x": false, "webshop": false,
	} {
		if got := Matches(s, text); got != want {
			t.Errorf("%q matches: %t", text, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]string{
		"-1s": "0 s", "499ms": "0 s", "59.4s": "59 s", "59.6s": "1 min", "89s": "1 min", "90s": "2 min", "4m57s": "5 min", "59m31s": "1 h", "1h59m40s": "2 h", "22h30m": "22 h 30 min",
		"47h59m40s": "2 days", "60h": "3 days", "59h": "2 days",
	} {
		if got := Span(must.Get(time.ParseDuration(text))(t)); got != want {
			t.Errorf("%s is %s, and to be %s", text, got, want)
		}
	}
	for text, want := range map[string]string{"24h0m0s": "24 h", "90s": "1 min 30 s", "1h0m5s": "1 h 5 s", "forever": "forever", "1.5s": "1.5s", "0s": "0s"} {
		if got := Lasting(text); got != want {
			t.Errorf("%s is %s, and to be %s", text, got, want)
		}
	}
}

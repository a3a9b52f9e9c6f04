package inspect_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestFilter judges one service by each part of a filter.
func TestFilter(t *testing.T) {
	service := &federation.Service{
		Name: "West/Shop", FQDN: must.Get(federation.ParseFQDN("shop.fed.example"))(t), Labels: federation.Pairs(map[string]string{"team": "web", "tier": "gold"}),
		Endpoints: []federation.Endpoint{{Address: must.Get(federation.ParseAddress("2001:db8::1"))(t), Port: 80}, {Address: must.Get(federation.ParseAddress("gw.example"))(t), Port: 80}},
	}
	for _, tt := range []struct {
		pattern string
		labels  []string
		address string
		want    bool
	}{
		{"", nil, "", true},
		{"SHOP", nil, "", true},
		{"west/", nil, "", true},
		{"shop.fed.example.", nil, "", true},
		{"shop*", nil, "", true},
		{"*.fed.example", nil, "", true},
		{"west*p", nil, "", true},
		{"fed*", nil, "", false},
		{"s.op", nil, "", false},
		{"(", nil, "", false},
		{"", []string{"team=web", "tier=*"}, "", true},
		{"", []string{"team=web", "tier=silver"}, "", false},
		{"", []string{"team=we"}, "", false},
		{"", nil, "2001:DB8:0::1", true},
		{"", nil, "2001:db8::11", false},
		{"", nil, "gw.example", true},
		{"", nil, "GW.example.", true},
		{"shop", []string{"team=web"}, "gw.example", true},
		{"shop", []string{"team=web"}, "192.0.2.1", false},
	} {
		filter := must.Get(inspect.NewFilter(tt.pattern, tt.labels, tt.address))(t)
		if got := filter.Matches(service); got != tt.want {
			t.Errorf("%+v is %v", tt, got)
		}
	}
	for _, label := range []string{"team", "=web", ""} {
		if _, err := inspect.NewFilter("", []string{label}, ""); err == nil {
			t.Errorf("label %q is taken", label)
		}
	}
}

// TestFindHostile asks a process whose services are none.
func TestFindHostile(t *testing.T) {
	for want, lines := range map[string]string{
		"this version does not": `{"name":"a","service":{"name":1}}`,
		"that is no service":    `{"services":1}`,
		"does not have":         "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if lines == "" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/x-ndjson")
			fmt.Fprintln(w, lines)
		}))
		e := must.Get(inspect.NewEndpoint(server.URL, mtls.Files{}, time.Minute))(t)
		_, err := e.Find(t.Context(), "o", must.Get(inspect.NewFilter("", nil, ""))(t), func(*inspect.Found) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", lines, err)
		}
		if _, err := e.Leads(t.Context(), netip.MustParseAddr("192.0.2.1")); err == nil {
			t.Errorf("%s: names lead somewhere", lines)
		}
		server.Close()
	}
	// What a terminal obeys is escaped in every cell.
	cells := (&inspect.Lead{Name: evil, Of: evil, Service: evil, Answer: "live"}).Cells()
	for _, cell := range cells {
		if strings.ContainsFunc(cell, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("a cell is %q", cell)
		}
	}
}

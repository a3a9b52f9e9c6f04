package domain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
)

func TestNames(t *testing.T) {
	for _, tt := range []struct{ labels, above, name, parent string }{
		{"web", "fed.example.", "web.fed.example.", "fed.example."},
		{"a.b", "fed.example.", "a.b.fed.example.", "b.fed.example."},
		{"web", ".", "web.", "."},
		{"a.b", ".", "a.b.", "b."},
	} {
		if got := domain.JoinLabels(tt.labels, tt.above); got != tt.name {
			t.Errorf("%s below %s is %s, want %s", tt.labels, tt.above, got, tt.name)
		}
		if got := domain.RelativeLabels(tt.name, tt.above); got != tt.labels {
			t.Errorf("%s relative to %s is %s, want %s", tt.name, tt.above, got, tt.labels)
		}
		if got := domain.Parent(tt.name); got != tt.parent {
			t.Errorf("the parent of %s is %s, want %s", tt.name, got, tt.parent)
		}
		if !domain.IsWithin(tt.name, tt.above) || !domain.IsWithin(tt.name, tt.name) || domain.IsWithin(tt.above, tt.name) {
			t.Errorf("%s and %s: not within each other as they are", tt.name, tt.above)
		}
	}
	if domain.IsWithin("xfed.example.", "fed.example.") {
		t.Error("xfed.example. is within fed.example.")
	}
}

func TestCutLabels(t *testing.T) {
	for _, tt := range []struct {
		name, first, rest string
		ok                bool
	}{
		{"_http._tcp", "_http._tcp", "", true},
		{"_http._tcp.v1.eu", "_http._tcp", "v1.eu", true},
		{"_http._tcpx", "_http._tcp", "", false},
		{"_tcp", "_http._tcp", "", false},
	} {
		rest, ok := domain.CutLabels(tt.name, tt.first)
		if ok != tt.ok || ok && rest != tt.rest {
			t.Errorf("%s from %s: %q, %v", tt.first, tt.name, rest, ok)
		}
	}
}

func TestReserved(t *testing.T) {
	for _, tt := range []struct {
		name, origin string
		want         bool
	}{
		{"dns.fed.example.", "fed.example.", true},
		{"ns.dns.fed.example.", "fed.example.", true},
		{"x.y.dns.fed.example.", "fed.example.", true},
		{"xdns.fed.example.", "fed.example.", false},
		{"dns.web.fed.example.", "fed.example.", false},
		{"dns.", ".", true},
		{"ns.dns.example.", "dns.example.", true},
		{"ns.dns.example.", "ns.dns.example.", true},
		{"ns.fed.example.", "fed.example.", false},
		{"192-0-2-1.addr.web.fed.example.", "fed.example.", true},
		{"192-0-2-256.addr.web.fed.example.", "fed.example.", false},
		{"web.addr.fed.example.", "fed.example.", false},
		{"fed.example.", "fed.example.", false},
	} {
		if got := domain.ReservedReason(tt.name, tt.origin); (got != "") != tt.want {
			t.Errorf("%s in %s: %q, want a reason: %v", tt.name, tt.origin, got, tt.want)
		}
	}
}

// TestServiceLabels has those of every protocol.
func TestServiceLabels(t *testing.T) {
	var got []string
	for p := range domain.Protocols {
		got = append(got, strings.ReplaceAll(strings.Join(domain.ServiceLabels(federation.Protocol(p)), " "), "."+domain.TCP, ""))
	}
	if want := []string{"", "_http", "_https", "_grpc", "_http2", "_mongo _mongodb", "_tcp", "_tls", "_mtls"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, ok := federation.ParseProtocol(federation.Protocol(domain.Protocols).String()); ok {
		t.Error("a protocol has no place among the labels")
	}
}

// TestAddress has the labels of addresses with octets of every length.
func TestAddress(t *testing.T) {
	for ip, want := range map[string]string{
		"0.9.10.99":            "0-9-10-99",
		"100.101.199.255":      "100-101-199-255",
		"::":                   "0000-0000-0000-0000-0000-0000-0000-0000",
		"2001:db8:a0:f::9:cb1": "2001-0db8-00a0-000f-0000-0000-0009-0cb1",
	} {
		addr := netip.MustParseAddr(ip)
		if got := string(domain.AppendAddress([]byte("x"), addr)); got != "x"+want {
			t.Errorf("%s is %s behind x, want %s", ip, got, want)
		}
		if got := domain.AddressLen(addr); got != len(want) {
			t.Errorf("%s has the length %d, want %d", ip, got, len(want))
		}
		if back, ok := domain.ParseAddress(want); !ok || back != addr {
			t.Errorf("%s is %s, %v", want, back, ok)
		}
	}
	for _, label := range []string{"", "1-2-3", "1-2-3-4-5", "01-2-3-4", "1-2-3-256", "2001-0DB8-0000-0000-0000-0000-0000-0001", strings.Repeat("0000-", 8) + "0000"} {
		if ip, ok := domain.ParseAddress(label); ok {
			t.Errorf("%s is %s", label, ip)
		}
	}
}

// FuzzAddress goes from an address to its label and back, and checks that a label
// that stands for an address is the only one.
func FuzzAddress(f *testing.F) {
	for _, ip := range []string{"0.0.0.0", "192.0.2.7", "255.255.255.255", "::", "2001:db8::1", "fd00::1:0:0:1"} {
		f.Add(netip.MustParseAddr(ip).AsSlice(), ip)
	}
	f.Add([]byte(nil), "192-0-2-07")
	f.Add([]byte(nil), "2001-db8--1")
	f.Add([]byte(nil), "1-2-3-4")
	f.Fuzz(func(t *testing.T, octets []byte, label string) {
		if ip, ok := netip.AddrFromSlice(octets); ok {
			own := string(domain.AppendAddress(nil, ip))
			if len(own) != domain.AddressLen(ip) || len(own) > domain.MaxAddress {
				t.Errorf("%s is %s, whose length is not %d", ip, own, domain.AddressLen(ip))
			}
			if back, ok := domain.ParseAddress(own); !ok || back != ip {
				t.Errorf("%s is %s, which is %s, %v", ip, own, back, ok)
			}
		}
		if ip, ok := domain.ParseAddress(label); ok && string(domain.AppendAddress(nil, ip)) != label {
			t.Errorf("%s is %s, whose label it is not", label, ip)
		}
	})
}

package record_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
)

const name = "Web.fed.example."

// addresses returns n addresses that follow each other.
func addresses(first string, n int) []netip.Addr {
	all := []netip.Addr{netip.MustParseAddr(first)}
	for len(all) < n {
		all = append(all, all[len(all)-1].Next())
	}
	return all
}

// TestRecords compares every kind with the text of a zone file.
func TestRecords(t *testing.T) {
	srv := record.SRV(name, "a.example.", 8080, 0, 30)
	for _, tt := range []struct {
		got  dns.RR
		want string
	}{
		{record.NewAddress(name, netip.MustParseAddr("192.0.2.1"), 30), "Web.fed.example. 30 IN A 192.0.2.1"},
		{record.NewAddress(name, netip.MustParseAddr("2001:db8::1"), 30), "Web.fed.example. 30 IN AAAA 2001:db8::1"},
		{&srv, "Web.fed.example. 30 IN SRV 0 100 8080 a.example."},
		{record.NS(name, "ns.example.", 5), "Web.fed.example. 5 IN NS ns.example."},
		{record.SOA(name, "ns.example.", "host.example.", 7, 5), "Web.fed.example. 5 IN SOA ns.example. host.example. 7 300 60 86400 5"},
		{record.AnyAnswer(name, 30), `Web.fed.example. 30 IN HINFO "RFC8482" ""`},
		{record.TXT(nil, name, 30, []string{"\x03a=1\x04b=\\x"})[0], `Web.fed.example. 30 IN TXT "a=1" "b=\\x"`},
	} {
		if got := strings.ReplaceAll(tt.got.String(), "\t", " "); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

// TestAddressesFitAMessage checks that a set of the largest number of addresses
// fits a message, and that no more are made.
func TestAddressesFitAMessage(t *testing.T) {
	// What is left of 65,535 octets without 512 for others, the header of 12 and the
	// largest question, in records of 12 octets and the address.
	const room = 65535 - 512 - 12 - (255 + 4)
	for first, most := range map[string]int{"198.18.0.0": room / (12 + 4), "2001:db8::": room / (12 + 16)} {
		ips := addresses(first, 5000)
		rrs := record.AppendAddresses(nil, name, ips, 30)
		if len(rrs) != most {
			t.Errorf("%d records from %s on, want %d", len(rrs), first, most)
		}
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeANY)
		m.Compress, m.Answer = true, rrs
		if n := m.Len(); n > dns.MaxMsgSize || n < record.MaxSet-100 {
			t.Errorf("%d records from %s on are %d octets", len(rrs), first, n)
		}
		for i, rr := range rrs {
			if got := addressOf(rr); got != ips[i] || !record.TypeHolds(rr.Header().Rrtype, got) {
				t.Fatalf("record %d holds %s, want %s", i, got, ips[i])
			}
		}
	}
	if rrs := record.AppendAddresses(nil, name, nil, 30); rrs != nil {
		t.Errorf("records of no address: %v", rrs)
	}
}

// addressOf returns the address that an A or AAAA record holds.
func addressOf(rr dns.RR) (ip netip.Addr) {
	switch rr := rr.(type) {
	case *dns.A:
		ip, _ = netip.AddrFromSlice(rr.A)
	case *dns.AAAA:
		ip, _ = netip.AddrFromSlice(rr.AAAA)
	}
	return ip
}

// TestSizes compares the sizes with those that the DNS library packs: the name is
// a pointer to the question.
func TestSizes(t *testing.T) {
	const target = "a.b.example.org."
	srv := record.SRV(name, target, 1, 0, 1)
	rdata := "\x05a=b\\c\x03d=e"
	for _, tt := range []struct {
		rr   dns.RR
		want int
	}{
		{record.NewAddress(name, netip.MustParseAddr("192.0.2.1"), 1), record.MinAddress},
		{&srv, record.SRVHeader + len(target)},
		{record.TXT(nil, name, 1, []string{rdata})[0], record.SizeTXT(rdata)},
	} {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeANY)
		m.Compress = true
		empty := m.Len()
		m.Answer = []dns.RR{tt.rr}
		if got := m.Len() - empty; got != tt.want {
			t.Errorf("%s is %d octets, want %d", tt.rr, got, tt.want)
		}
	}
}

func TestCompareTXT(t *testing.T) {
	sorted := []string{"", "\x01a", "\x01a\x01b", "\x02ab", "\x01b"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got, want := record.CompareTXT(a, b), min(max(i-j, -1), 1); min(max(got, -1), 1) != want {
				t.Errorf("%q and %q compare as %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestStrings(t *testing.T) {
	for rdata, want := range map[string][]string{
		"":                    nil,
		"\x00":                {""},
		"\x01a\x00\x02bc":     {"a", "", "bc"},
		"\x01a\x00":           {"a", ""},
		"\x00\x00\x01a":       {"", "", "a"},
		"\xff" + letters(255): {letters(255)},
	} {
		if d := cmp.Diff(want, slices.Collect(record.TXTStrings(rdata))); d != "" {
			t.Errorf("%q (-want +got):\n%s", rdata, d)
		}
		for range record.TXTStrings(rdata) {
			break
		}
	}
}

func letters(n int) string { return strings.Repeat("x", n) }

// TestTXTRecordsHoldTheirOwn checks that several records each have their strings,
// and that one can be appended to without a change of the next.
func TestTXTRecordsHoldTheirOwn(t *testing.T) {
	rrs := record.TXT(nil, name, 30, []string{"\x01a\x01b", "\x00", "\x01c"})
	first := rrs[0].(*dns.TXT)
	first.Txt = append(first.Txt, "more")
	var got []string
	for _, rr := range rrs {
		got = append(got, strings.Join(rr.(*dns.TXT).Txt, "|"))
	}
	if d := cmp.Diff([]string{"a|b|more", "", "c"}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

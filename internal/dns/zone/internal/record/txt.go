package record

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// MaxString is how many octets one string of a TXT record has at most (RFC 1035
// section 3.3.14).
const MaxString = 255

// TXT returns rrs with the records of these RDATA appended. RDATA are strings, each after its
// length in one octet.
func TXT(rrs []dns.RR, name string, ttl uint32, rdata []string) []dns.RR {
	n := 0
	for _, text := range rdata {
		for range TXTStrings(text) {
			n++
		}
	}
	records, all := make([]dns.TXT, len(rdata)), make([]string, 0, n)
	rrs = slices.Grow(rrs, len(rdata))
	for i, text := range rdata {
		begin := len(all)
		for s := range TXTStrings(text) {
			// The DNS library reads a backslash as the start of an escape.
			all = append(all, strings.ReplaceAll(s, `\`, `\\`))
		}
		records[i] = dns.TXT{Hdr: newHeader(name, dns.TypeTXT, ttl), Txt: all[begin:len(all):len(all)]}
		rrs = append(rrs, &records[i])
	}
	return rrs
}

// TXTStrings returns the strings of a TXT record (RFC 1035 section 3.3).
func TXTStrings(rdata string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(rdata) > 0 {
			n := 1 + int(rdata[0])
			if !yield(rdata[1:n]) {
				return
			}
			rdata = rdata[n:]
		}
	}
}

// CompareTXT orders the RDATA of TXT records by their strings.
func CompareTXT(a, b string) int {
	for a != "" && b != "" {
		m, n := 1+int(a[0]), 1+int(b[0])
		if c := strings.Compare(a[1:m], b[1:n]); c != 0 {
			return c
		}
		a, b = a[m:], b[n:]
	}
	return cmp.Compare(len(a), len(b))
}

// SizeTXT returns the size of the record in the way of the DNS library, which counts escapes as
// they are written when it decides whether a reply must be truncated.
func SizeTXT(rdata string) int { return Header + len(rdata) + strings.Count(rdata, `\`) }

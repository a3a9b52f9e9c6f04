package zone

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

const (
	maxString = 255  // octets of one string (RFC 1035 section 3.3.14)
	maxTXT    = 1300 // octets of RDATA that RFC 6763 section 6.2 still recommends
)

// txt returns the TXT records of an instance, or of the service: one record for
// itself and one for each instance. Hamlet, 'CREATE': the entry of the fqdn has
// 'all the information in each Instance'.
func (e *entry) txt(owner string, in *instance, ttl uint32) []dns.RR {
	record := func(p pairs) dns.RR { return &dns.TXT{Hdr: header(owner, dns.TypeTXT, ttl), Txt: p.strings()} }
	if in != nil {
		return []dns.RR{record(instanceTXT(&e.service.Instances[in.index]))}
	}
	rrs := make([]dns.RR, 0, 1+len(e.described))
	rrs = append(rrs, record(serviceTXT(e.service)))
	for _, i := range e.described {
		rrs = append(rrs, record(instanceTXT(&e.service.Instances[i])))
	}
	return rrs
}

// describe fills described: by ID, equal records once (RFC 2181 section 5), and
// as many as fit a message.
func (e *entry) describe() {
	own := serviceTXT(e.service)
	e.faults.add(FaultTXT, own.dropped)
	records := make([]pairs, len(e.service.Instances))
	e.described = make(ends, len(records))
	for i := range records {
		records[i] = instanceTXT(&e.service.Instances[i])
		e.faults.add(FaultTXT, records[i].dropped)
		e.described[i] = uint16(i) // wire.MaxInstances is far below 1<<16
	}
	compare := func(a, b uint16) int { return records[a].compare(records[b]) }
	slices.SortFunc(e.described, compare)
	e.described = slices.CompactFunc(e.described, func(a, b uint16) bool { return compare(a, b) == 0 })
	size := own.size()
	for n, i := range e.described {
		if size += records[i].size(); size > maxSet {
			e.described = e.described[:n]
			e.faults.add(FaultSize, 1)
			break
		}
	}
	e.described = slices.Clip(e.described)
}

func serviceTXT(s *federation.Service) pairs {
	p := newPairs(2 + len(s.Tags) + len(s.Labels) + len(s.SANs))
	p.add("name", s.Name)
	p.addText("desc", s.Description)
	p.addNumbered("tag", s.Tags)
	for _, l := range p.fold(s.Labels) {
		p.add("label."+l.Key, l.Value)
	}
	p.addNumbered("san", s.SANs)
	return p
}

// reservedKeys are the metadata keys of the specification ('Complex Type
// Instance'), in the order in which they stand in a record.
var reservedKeys = []string{"sni", "hostname", "port"}

func instanceTXT(in *federation.Instance) pairs {
	p := newPairs(3 + len(in.Metadata))
	if !in.Unnamed {
		p.add("id", in.ID)
	}
	p.add("protocol", in.Protocol.String())
	metadata := p.fold(in.Metadata)
	for _, key := range reservedKeys {
		for _, m := range metadata {
			if m.Key == key {
				p.add(key, m.Value)
			}
		}
	}
	p.addText("desc", in.Description)
	for _, m := range metadata {
		if !slices.Contains(reservedKeys, m.Key) {
			p.add("md."+m.Key, m.Value)
		}
	}
	return p
}

// pairs collects the strings of one TXT record (RFC 6763 section 6).
type pairs struct {
	text    []byte // the strings, with escapes as the library takes them, each with a NUL behind it
	ends    []int  // of each string in text, the NUL included
	rdata   int    // octets on the wire
	full    bool
	dropped int
}

// newPairs begins a record with its version (RFC 6763 section 6.7), so that no
// record is without a string (RFC 1035 section 3.3.14). It has room for n more.
func newPairs(n int) pairs {
	p := pairs{text: make([]byte, 0, 32*(1+n)), ends: make([]int, 0, 1+n)}
	p.add("txtvers", "1")
	return p
}

func (p *pairs) strings() []string {
	text, start := string(p.text), 0
	all := make([]string, len(p.ends))
	for i, end := range p.ends {
		all[i], start = text[start:end-1], end
	}
	return all
}

// compare orders records by their strings.
func (p *pairs) compare(q pairs) int {
	return cmp.Or(bytes.Compare(p.text, q.text), slices.Compare(p.ends, q.ends))
}

// size is what the server takes the record to be, which counts escapes as they
// are written when it decides whether a reply must be truncated. A string has
// its length before it, where it has a NUL behind it here.
func (p *pairs) size() int { return rrHeader + len(p.text) }

// add appends key=value and tells whether it did. An absent value gives no
// string, and one that is too long is dropped whole: a client could not tell
// that it was cut.
func (p *pairs) add(key, value string) bool {
	if value == "" {
		return false
	}
	n := len(key) + 1 + len(value)
	if p.full = p.full || p.rdata+1+n > maxTXT; p.full || n > maxString {
		p.dropped++
		return false
	}
	p.rdata += 1 + n
	p.text = append(appendEscaped(p.text, key), '=')
	p.text = append(appendEscaped(p.text, value), 0)
	p.ends = append(p.ends, len(p.text))
	return true
}

// appendEscaped appends s for the library, which takes a backslash as the start
// of an escape.
func appendEscaped(b []byte, s string) []byte {
	return append(b, strings.ReplaceAll(s, `\`, `\\`)...)
}

// addText appends text for people, which may be cut.
func (p *pairs) addText(key, text string) {
	if limit := maxString - len(key) - 1; len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	p.add(key, text)
}

// addNumbered appends key, key2, key3 and so on: clients ignore all but the
// first string of a key (RFC 6763 section 6.4).
func (p *pairs) addNumbered(key string, values []string) {
	numbered, n := key, 1
	for _, v := range values {
		if p.add(numbered, v) {
			n++
			numbered = key + strconv.Itoa(n)
		}
	}
}

// fold returns a map with its keys in lower case and sorted. Of keys that are
// equal then, the first in byte order of the original is kept.
func (p *pairs) fold(values []federation.Pair) []federation.Pair {
	if len(values) == 0 {
		return nil
	}
	folded := make([]federation.Pair, 0, len(values))
	for _, v := range values {
		if isKey(v.Key) {
			folded = append(folded, federation.Pair{Key: strings.ToLower(v.Key), Value: v.Value})
		}
	}
	slices.SortStableFunc(folded, func(a, b federation.Pair) int { return strings.Compare(a.Key, b.Key) })
	folded = slices.CompactFunc(folded, func(a, b federation.Pair) bool { return a.Key == b.Key })
	p.dropped += len(values) - len(folded)
	return folded
}

// isKey tells whether s is a key of RFC 6763 section 6.4: printable ASCII
// without '='.
func isKey(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == '=' {
			return false
		}
	}
	return s != ""
}

package zone

import (
	"cmp"
	"iter"
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
// 'all the information in each Instance'. They end with the one that is more than
// fits.
func (e *entry) txt(owner string, in *instance, ttl uint32, room int) []dns.RR {
	if in != nil {
		return txtRecords(owner, ttl, []string{e.text(1 + int(in.index))})
	}
	texts := make([]string, 0, 1+len(e.described))
	texts = append(texts, e.text(0))
	size := rrHeader + len(texts[0])
	for _, i := range e.described {
		if size > room {
			break
		}
		texts = append(texts, e.text(1+int(i)))
		size += rrHeader + len(texts[len(texts)-1])
	}
	return txtRecords(owner, ttl, texts)
}

// text returns the RDATA of a TXT record: 0 is that of the service, and n that
// of the instance before n.
func (e *entry) text(n int) string {
	begin := uint32(0)
	if n > 0 {
		begin = e.textEnds[n-1]
	}
	return e.texts[begin:e.textEnds[n]]
}

// txtRecords returns the records that have these RDATA.
func txtRecords(owner string, ttl uint32, texts []string) []dns.RR {
	n := 0
	for _, text := range texts {
		for range characterStrings(text) {
			n++
		}
	}
	records, rrs, all := make([]dns.TXT, len(texts)), make([]dns.RR, len(texts)), make([]string, 0, n)
	for i, text := range texts {
		begin := len(all)
		for s := range characterStrings(text) {
			// The library takes a backslash as the start of an escape.
			all = append(all, strings.ReplaceAll(s, `\`, `\\`))
		}
		records[i] = dns.TXT{Hdr: header(owner, dns.TypeTXT, ttl), Txt: all[begin:len(all):len(all)]}
		rrs[i] = &records[i]
	}
	return rrs
}

// characterStrings yields the strings of a TXT record (RFC 1035 section 3.3).
func characterStrings(rdata string) iter.Seq[string] {
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

// compareTXT orders records by their strings.
func compareTXT(a, b string) int {
	for a != "" && b != "" {
		m, n := 1+int(a[0]), 1+int(b[0])
		if c := strings.Compare(a[1:m], b[1:n]); c != 0 {
			return c
		}
		a, b = a[m:], b[n:]
	}
	return cmp.Compare(len(a), len(b))
}

// sizeTXT is what the server takes the record to be, which counts escapes as they
// are written when it decides whether a reply must be truncated.
func sizeTXT(rdata string) int { return rrHeader + len(rdata) + strings.Count(rdata, `\`) }

// describe writes the TXT records, once for all queries: nothing that an owner
// puts into them can make a query expensive. It fills described: by ID, equal
// records once (RFC 2181 section 5), and as many as fit a message.
func (e *entry) describe() {
	s := e.service
	var w txtWriter
	e.textEnds = make([]uint32, 1+len(s.Instances))
	w.service(s)
	e.textEnds[0] = w.end()
	for i := range s.Instances {
		w.instance(&s.Instances[i])
		e.textEnds[1+i] = w.end()
	}
	e.texts = string(w.data)
	e.faults.add(FaultTXT, w.dropped)

	e.described = e.oneDescribed[:1]
	if len(s.Instances) > 1 {
		e.described = make(ends, len(s.Instances))
	}
	for i := range e.described {
		e.described[i] = uint16(i) // wire.MaxInstances is far below 1<<16
	}
	compare := func(a, b uint16) int { return compareTXT(e.text(1+int(a)), e.text(1+int(b))) }
	if !slices.IsSortedFunc(e.described, compare) {
		slices.SortFunc(e.described, compare)
	}
	e.described = slices.CompactFunc(e.described, func(a, b uint16) bool { return e.text(1+int(a)) == e.text(1+int(b)) })
	size := sizeTXT(e.text(0))
	for n, i := range e.described {
		if size += sizeTXT(e.text(1 + int(i))); size > maxSet {
			e.described = e.described[:n]
			e.faults.add(FaultSize, 1)
			break
		}
	}
	e.described = slices.Clip(e.described)
}

// txtWriter writes the RDATA of TXT records, one behind the other: strings of the
// form key=value (RFC 6763 section 6), each behind its length.
type txtWriter struct {
	data    []byte
	begin   int // of the record
	full    bool
	dropped int               // of all records
	folded  []federation.Pair // what fold returned last
}

// start begins a record with its version (RFC 6763 section 6.7), so that no
// record is without a string (RFC 1035 section 3.3.14).
func (w *txtWriter) start() {
	w.begin, w.full = len(w.data), false
	w.add("", "txtvers", "1")
}

// end returns where the records that are written end.
func (w *txtWriter) end() uint32 { return uint32(len(w.data)) } //nolint:gosec // a service has some MB at most

func (w *txtWriter) service(s *federation.Service) {
	w.start()
	w.add("", "name", s.Name)
	w.addText("desc", s.Description)
	w.addNumbered("tag", s.Tags)
	for _, l := range w.fold(s.Labels) {
		w.add("label.", l.Key, l.Value)
	}
	w.addNumbered("san", s.SANs)
}

// reservedKeys are the metadata keys of the specification ('Complex Type
// Instance'), in the order in which they stand in a record.
var reservedKeys = []string{"sni", "hostname", "port"}

func (w *txtWriter) instance(in *federation.Instance) {
	w.start()
	if !in.Unnamed {
		w.add("", "id", in.ID)
	}
	w.add("", "protocol", in.Protocol.String())
	metadata := w.fold(in.Metadata)
	for _, key := range reservedKeys {
		for _, m := range metadata {
			if m.Key == key {
				w.add("", key, m.Value)
			}
		}
	}
	w.addText("desc", in.Description)
	for _, m := range metadata {
		if !slices.Contains(reservedKeys, m.Key) {
			w.add("md.", m.Key, m.Value)
		}
	}
}

// add appends key=value, with a prefix to the key, and reports whether it did.
// An absent value gives no string, and one that is too long is dropped whole: a
// client could not tell that it was cut.
func (w *txtWriter) add(prefix, key, value string) bool {
	if value == "" {
		return false
	}
	n := len(prefix) + len(key) + 1 + len(value)
	if n > maxString {
		w.dropped++
		return false
	}
	if w.full = w.full || len(w.data)-w.begin+1+n > maxTXT; w.full {
		w.dropped++
		return false
	}
	w.data = append(append(append(w.data, byte(n)), prefix...), key...)
	w.data = append(append(w.data, '='), value...)
	return true
}

// addText appends text for people, which may be cut.
func (w *txtWriter) addText(key, text string) {
	if limit := maxString - len(key) - 1; len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	w.add("", key, text)
}

// addNumbered appends key, key2, key3 and so on: clients ignore all but the
// first string of a key (RFC 6763 section 6.4).
func (w *txtWriter) addNumbered(key string, values []string) {
	numbered, n := key, 1
	for _, v := range values {
		if w.add("", numbered, v) {
			n++
			numbered = key + strconv.Itoa(n)
		}
	}
}

// fold returns a map with its keys in lower case and sorted, until it is called
// again. Of keys that are equal then, the first in byte order of the original is
// kept.
func (w *txtWriter) fold(values []federation.Pair) []federation.Pair {
	folded := w.folded[:0]
	for _, v := range values {
		if isKey(v.Key) {
			folded = append(folded, federation.Pair{Key: strings.ToLower(v.Key), Value: v.Value})
		}
	}
	w.folded = folded
	byKey := func(a, b federation.Pair) int { return strings.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(folded, byKey) {
		slices.SortStableFunc(folded, byKey)
	}
	folded = slices.CompactFunc(folded, func(a, b federation.Pair) bool { return a.Key == b.Key })
	w.dropped += len(values) - len(folded)
	return folded
}

// isKey reports whether s is a key of RFC 6763 section 6.4: printable ASCII
// without '='.
func isKey(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == '=' {
			return false
		}
	}
	return s != ""
}

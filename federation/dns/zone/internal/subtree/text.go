package subtree

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/record"
)

// maxTXT is how many octets of RDATA RFC 6763 section 6.2 still recommends.
const maxTXT = 1300

// InstanceText returns the RDATA of the TXT record of an instance.
func (t *Subtree) InstanceText(in *Instance) string { return t.text(1 + int(in.Index)) }

// Texts returns the RDATA of the TXT records of the service: one for itself and
// one for each instance. Hamlet, 'CREATE': the entry of the fqdn has 'all the
// information in each Instance'. They end with the first that makes the records
// larger than room, in octets.
func (t *Subtree) Texts(room int) []string {
	describedBy := t.describing()
	texts := make([]string, 0, 1+len(describedBy))
	texts = append(texts, t.text(0))
	size := record.Header + len(texts[0])
	for _, i := range describedBy {
		if size > room {
			break
		}
		texts = append(texts, t.text(1+int(i)))
		size += record.Header + len(texts[len(texts)-1])
	}
	return texts
}

// text returns the RDATA of a TXT record: 0 is that of the service, and n that
// of the instance before n.
func (t *Subtree) text(n int) string {
	if n == 0 {
		return t.texts[:t.textEnd]
	}
	ends := t.some().textEnds
	switch {
	case ends == nil:
		return t.texts[t.textEnd:]
	case n == 1:
		return t.texts[t.textEnd:ends[0]]
	}
	return t.texts[ends[n-2]:ends[n-1]]
}

// describing returns the instances with a TXT record at the fqdn.
func (t *Subtree) describing() []uint16 {
	if r := t.some(); r.textEnds != nil {
		return r.describedBy
	}
	return everything[:1]
}

// describe writes the TXT records.
func (c *compiler) describe() {
	s := c.service
	var buf [1 << 10]byte // most services fit
	w := txtWriter{data: buf[:0]}
	w.service(s)
	c.textEnd = w.len()
	var ends []uint32
	if len(s.Instances) != 1 {
		ends = make([]uint32, len(s.Instances))
		c.more().textEnds = ends
	}
	for i := range s.Instances {
		w.instance(&s.Instances[i])
		if ends != nil {
			ends[i] = w.len()
		}
	}
	c.texts = string(w.data)
	c.fault(FaultTXT, w.dropped)
	if ends != nil {
		c.rare.describedBy = c.orderTexts()
	}
}

// orderTexts returns the instances with a TXT record at the fqdn: by content, equal
// records once (RFC 2181 section 5), and as many as fit a message.
func (c *compiler) orderTexts() []uint16 {
	text := func(i uint16) string { return c.text(1 + int(i)) }
	order := everything[:len(c.service.Instances)]
	compare := func(a, b uint16) int { return record.CompareTXT(text(a), text(b)) }
	// Mostly they are in order already, each once.
	if !slices.IsSortedFunc(order, func(a, b uint16) int { return cmp.Or(compare(a, b), -1) }) {
		order = slices.Clone(order)
		slices.SortFunc(order, compare)
		order = slices.CompactFunc(order, func(a, b uint16) bool { return text(a) == text(b) })
	}
	size := record.SizeTXT(c.text(0))
	for n, i := range order {
		if size += record.SizeTXT(text(i)); size > record.MaxSet {
			c.fault(FaultSize, 1)
			return order[:n:n]
		}
	}
	return slices.Clip(order)
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

// len returns how much is written.
func (w *txtWriter) len() uint32 { return uint32(len(w.data)) } //nolint:gosec // a service has some MB at most

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
	if n > record.MaxString {
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
	if limit := record.MaxString - len(key) - 1; len(text) > limit {
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

package subtree

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// maxTXT is the most octets of RDATA that RFC 6763 section 6.2 recommends.
const maxTXT = 1300

// commonTXT is how many octets of RDATA most services with one instance have at most.
const commonTXT = 256

// exportLabel is mcs.Label. It is left out, and not counted as dropped, because only importers read
// it, and most are longer than a string. Package mcs stands on the API of Kubernetes, which a zone
// has no use for.
const exportLabel = "multicluster.x-k8s.io/export"

// Texts returns the RDATA of the TXT record of an instance. Where in is nil, it returns those of
// the service: one for the service itself and one for each instance. Hamlet, 'CREATE': the entry of
// the fqdn has 'all the information in each Instance'. The list ends with the first text that makes
// the records larger than room, in octets. Of is the service of which t was compiled. The caller
// must not change the list.
func (t *Subtree) Texts(of packed.Service, in *Instance, room int) []string {
	r := t.Joined().rareOrNone()
	if in != nil && r.shared != nil {
		return r.shared.textsOf(in)
	}
	all := r.texts
	if all == nil { // as allTexts, for whose frame the stack of a query has no room
		all, _ = encodeTexts(of.Unpack(), true)
	}
	switch {
	case in != nil:
		return all[1+in.Index:][:1]
	case r.texts == nil && record.Header+len(all[0]) <= room:
		return all
	}
	some := make([]string, 0, 1+len(r.describedBy))
	some = append(some, all[0])
	size := record.Header + len(all[0])
	for _, i := range r.describedBy {
		if size > room {
			break
		}
		some = append(some, all[1+i])
		size += record.Header + len(all[1+i])
	}
	return some
}

// allTexts returns the RDATA of the TXT records of the service and of each instance.
func (t *Subtree) allTexts(of *federation.Service) []string {
	all := t.rareOrNone().texts
	if all == nil {
		all, _ = encodeTexts(of, true)
	}
	return all
}

// encodeTexts returns the RDATA of the TXT records of a service and of each instance, in one piece
// of memory, and how many strings are dropped. Without keeps it only counts.
func encodeTexts(s *federation.Service, keeps bool) (all []string, dropped int) {
	w := txtWriter{keeps: keeps}
	if keeps {
		w.data, all = make([]byte, 0, commonTXT), make([]string, 1+len(s.Instances))
	}
	var few [2]int
	w.writeService(s)
	ends := append(few[:0], w.size)
	for i := range s.Instances {
		w.writeInstance(&s.Instances[i])
		ends = append(ends, w.size)
	}
	whole, begin := string(w.data), 0
	for i := range all {
		all[i], begin = whole[begin:ends[i]], ends[i]
	}
	return all, w.dropped
}

// compileTexts counts what the TXT records leave out, and keeps the records where there are several
// instances.
func (c *serviceCompiler) compileTexts() {
	all, dropped := encodeTexts(c.service, len(c.service.Instances) != 1)
	c.countFault(FaultTXT, dropped)
	if all != nil {
		order, whole := orderTexts(all)
		if c.ensureRare().texts, c.rare.describedBy = all, order; !whole {
			c.countFault(FaultSize, 1)
		}
	}
}

// orderTexts returns the instances with a TXT record at the fqdn: by content, equal records once
// (RFC 2181 section 5), and as many as fit a message. It reports whether these are all.
func orderTexts(texts []string) (order []uint16, whole bool) {
	text := func(i uint16) string { return texts[1+i] }
	order = everything[:len(texts)-1]
	compare := func(a, b uint16) int { return record.CompareTXT(text(a), text(b)) }
	// Mostly they are in order already, each once.
	if !slices.IsSortedFunc(order, func(a, b uint16) int { return cmp.Or(compare(a, b), -1) }) {
		order = slices.Clone(order)
		slices.SortFunc(order, compare)
		order = slices.CompactFunc(order, func(a, b uint16) bool { return text(a) == text(b) })
	}
	size := record.SizeTXT(texts[0])
	for n, i := range order {
		if size += record.SizeTXT(text(i)); size > record.MaxSet {
			return order[:n:n], false
		}
	}
	return slices.Clip(order), true
}

// txtWriter writes the RDATA of TXT records, one after the other: strings of the form key=value
// (RFC 6763 section 6), each after its length.
type txtWriter struct {
	keeps   bool // whether data is written, or only counted
	data    []byte
	size    int // of all records
	begin   int // of the record
	full    bool
	dropped int // of all records
}

// startRecord begins a record with its version (RFC 6763 section 6.7), so that no record is without
// a string (RFC 1035 section 3.3.14).
func (w *txtWriter) startRecord() {
	w.begin, w.full = w.size, false
	w.addPair("", "txtvers", "1")
}

func (w *txtWriter) writeService(s *federation.Service) {
	w.startRecord()
	w.addPair("", "name", s.Name)
	w.addPair("", "desc", cutText("desc", s.Description))
	w.addNumbered("tag", s.Tags)
	for _, l := range w.foldKeys(s.Labels) {
		w.addPair("label.", l.Key, l.Value)
	}
	w.addNumbered("san", s.SANs)
}

// reservedKeys are the metadata keys of the specification ('Complex Type Instance'), in their order
// in a record.
var reservedKeys = []string{"sni", "hostname", "port"}

func (w *txtWriter) writeInstance(in *federation.Instance) {
	w.startRecord()
	if !in.Unnamed {
		w.addPair("", "id", in.ID)
	}
	w.addPair("", "protocol", in.Protocol.String())
	metadata := w.foldKeys(in.Metadata)
	for _, key := range reservedKeys {
		for _, m := range metadata {
			if m.Key == key {
				w.addPair("", key, m.Value)
			}
		}
	}
	w.addPair("", "desc", cutText("desc", in.Description))
	for _, m := range metadata {
		if !slices.Contains(reservedKeys, m.Key) {
			w.addPair("md.", m.Key, m.Value)
		}
	}
}

// addPair appends key=value, with a prefix to the key, and reports whether it did. An absent value
// makes no string. A value that is too long is dropped whole, because a client could not see that
// it was cut.
func (w *txtWriter) addPair(prefix, key, value string) bool {
	if value == "" {
		return false
	}
	n := len(prefix) + len(key) + 1 + len(value)
	if n > record.MaxString {
		w.dropped++
		return false
	}
	if w.full = w.full || w.size-w.begin+1+n > maxTXT; w.full {
		w.dropped++
		return false
	}
	if w.size += 1 + n; w.keeps {
		w.data = append(append(append(w.data, byte(n)), prefix...), key...)
		w.data = append(append(w.data, '='), value...)
	}
	return true
}

// cutText returns as much of a text for people as fits a string with the key.
func cutText(key, text string) string {
	if limit := record.MaxString - len(key) - 1; len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	return text
}

// addNumbered appends the values under key, key2, key3 and so on, because clients ignore all but
// the first string of a key (RFC 6763 section 6.4).
func (w *txtWriter) addNumbered(key string, values []string) {
	numbered, n := key, 1
	for _, v := range values {
		if w.addPair("", numbered, v) {
			n++
			numbered = key + strconv.Itoa(n)
		}
	}
}

// foldKeys returns the pairs with their keys in lower case and sorted. Of keys that are equal then,
// it keeps the first in byte order of the original.
func (w *txtWriter) foldKeys(values []federation.Pair) []federation.Pair {
	folded := make([]federation.Pair, 0, len(values))
	for _, v := range values {
		if v.Key == exportLabel {
			w.dropped-- // it is left out on purpose
		} else if isKey(v.Key) {
			folded = append(folded, federation.Pair{Key: strings.ToLower(v.Key), Value: v.Value})
		}
	}
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

package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
)

// Field is a difference between two forms of a service.
type Field struct {
	Change string `json:"change"` // - for what is gone, + for what is new, ~ for what has another value
	Field  string `json:"field"`  // such as labels.team, or endpoints[192.0.2.1:443]
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// String returns the difference: -field, +field: value, or field: before -> after.
func (f Field) String() string {
	name := federation.Printable(f.Field)
	switch {
	case f.Change == "-":
		return "-" + name
	case f.Change == "+" && strings.HasSuffix(f.Field, "]"):
		return "+" + name // the value is in its name
	case f.Change == "+":
		return "+" + name + ": " + plain(f.After)
	}
	return name + ": " + plain(f.Before) + " -> " + plain(f.After)
}

// differences collects those between two forms of a service.
type differences struct{ found []Field }

// Compare returns the differences between two forms of a service, none for equal ones.
func Compare(a, b *federation.Service) []Field {
	var d differences
	d.text("fqdn", plainFQDN(a.FQDN), plainFQDN(b.FQDN))
	d.text("description", a.Description, b.Description)
	d.words("tags", a.Tags, b.Tags)
	d.pairs("labels", a.Labels, b.Labels)
	d.words("sans", a.SANs, b.SANs)
	matched(a.Endpoints, b.Endpoints, func(e *federation.Endpoint) string { return printable.Place(*e) }, func(key string, before, after *federation.Endpoint) {
		at := "endpoints[" + key + "]"
		if d.item(at, key, key, before != nil, after != nil) {
			d.words(at+".labels", before.Labels, after.Labels)
			d.text(at+".description", before.Description, after.Description)
		}
	})
	matched(a.Instances, b.Instances, func(in *federation.Instance) string { return in.ID }, func(key string, before, after *federation.Instance) {
		at := "instances[" + key + "]"
		if d.item(at, key, key, before != nil, after != nil) {
			d.text(at+".protocol", before.Protocol.String(), after.Protocol.String())
			d.pairs(at+".metadata", before.Metadata, after.Metadata)
			d.words(at+".endpointSelector", before.EndpointSelector, after.EndpointSelector)
			d.text(at+".description", before.Description, after.Description)
		}
	})
	if len(d.found) == 0 && !a.Equal(b) {
		d.text("order of lists", "one", "another")
	}
	return d.found
}

// text compares a field that has one text, or none when that is empty.
func (d *differences) text(field, before, after string) {
	if d.item(field, before, after, before != "", after != "") && before != after {
		d.found = append(d.found, Field{"~", field, before, after})
	}
}

// item notes that something is new or gone, and reports whether it is neither.
func (d *differences) item(field, before, after string, was, is bool) bool {
	switch {
	case was && !is:
		d.found = append(d.found, Field{Change: "-", Field: field, Before: before})
	case is && !was:
		d.found = append(d.found, Field{Change: "+", Field: field, After: after})
	}
	return was && is
}

func (d *differences) words(field string, before, after []string) {
	itself := func(s *string) string { return *s }
	matched(before, after, itself, func(key string, before, after *string) {
		d.item(field+"["+key+"]", key, key, before != nil, after != nil)
	})
}

func (d *differences) pairs(field string, before, after []federation.Pair) {
	var none federation.Pair
	matched(before, after, func(p *federation.Pair) string { return p.Key }, func(key string, before, after *federation.Pair) {
		was, is := cmp.Or(before, &none), cmp.Or(after, &none)
		if d.item(field+"."+key, was.Value, is.Value, before != nil, after != nil) && was.Value != is.Value {
			d.found = append(d.found, Field{"~", field + "." + key, was.Value, is.Value})
		}
	})
}

// matched calls each with the items of two lists that have the same key; where one list
// has no such item, with nil. Those of before come first.
func matched[T any](before, after []T, key func(*T) string, each func(key string, before, after *T)) {
	places := make(map[string][]int, len(after))
	for i := range after {
		places[key(&after[i])] = append(places[key(&after[i])], i)
	}
	var rest []int
	for i := range before {
		k := key(&before[i])
		var other *T
		if at := places[k]; len(at) > 0 {
			other, places[k] = &after[at[0]], at[1:]
		}
		each(k, &before[i], other)
	}
	for _, at := range places {
		rest = append(rest, at...)
	}
	slices.Sort(rest)
	for _, i := range rest {
		each(key(&after[i]), nil, &after[i])
	}
}

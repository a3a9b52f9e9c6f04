package subtree_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
)

// wireTXT returns the strings of each TXT record as they are on the wire.
func wireTXT(t *testing.T, rdata []string) [][]string {
	t.Helper()
	const name = "s.fed.example."
	var all [][]string
	for _, rr := range record.TXT(nil, name, 30, rdata) {
		buf := make([]byte, 2*dns.MaxMsgSize)
		end, err := dns.PackRR(rr, buf, 0, nil, false)
		if err != nil {
			t.Fatalf("%s: %v", rr, err)
		}
		rest := buf[len(name)+1+10 : end] // behind the name, type, class, TTL and length
		var texts []string
		for len(rest) > 0 {
			n := int(rest[0])
			texts = append(texts, string(rest[1:1+n]))
			rest = rest[1+n:]
		}
		all = append(all, texts)
	}
	return all
}

// serviceText returns the strings of the TXT records of the service.
func serviceText(t *testing.T, tree tree) [][]string {
	t.Helper()
	return wireTXT(t, tree.Texts(record.MaxSet))
}

// instanceText returns the strings of the TXT record of an instance.
func instanceText(t *testing.T, tree tree, labels string) [][]string {
	t.Helper()
	in, ok := tree.FindInstance(labels)
	if !ok {
		t.Fatalf("there is no instance %s", labels)
	}
	return wireTXT(t, tree.Subtree.Texts(tree.of, in, record.MaxSet))
}

// TestInstanceText has the rules for the strings of an instance, as seen on the wire,
// by section of the decision table.
func TestInstanceText(t *testing.T) {
	type pairs = []federation.Pair
	long := func(prefix string, n int) string { return prefix + strings.Repeat("x", n-len(prefix)) }
	const id, protocol = "id=i", "protocol=HTTP"
	tests := []struct {
		name     string
		instance federation.Instance
		want     []string // behind txtvers
		dropped  int
	}{
		{name: "3.1 nothing but what is required", want: []string{id, protocol}},
		{
			name: "3.1 everything, in this order",
			instance: federation.Instance{Description: "d", Metadata: pairs{
				{Key: "HOSTNAME", Value: "h"}, {Key: "PORT", Value: "1"}, {Key: "SNI", Value: "s"}, {Key: "b", Value: "2"}, {Key: "zone", Value: "eu"},
			}},
			want: []string{id, protocol, "sni=s", "hostname=h", "port=1", "desc=d", "md.b=2", "md.zone=eu"},
		},
		{
			name:     "3.1 absent values give no string",
			instance: federation.Instance{Metadata: pairs{{Key: "SNI"}, {Key: "a"}, {Key: "b", Value: "2"}}},
			want:     []string{id, protocol, "md.b=2"},
		},
		{
			name:     "3.3 keys in lower case, the first of equal ones",
			instance: federation.Instance{Metadata: pairs{{Key: "KEY", Value: "1"}, {Key: "Key", Value: "2"}, {Key: "Sni", Value: "3"}, {Key: "sni", Value: "4"}}},
			want:     []string{id, protocol, "sni=3", "md.key=1"},
			dropped:  2,
		},
		{
			name: "3.3 what is no key",
			instance: federation.Instance{Metadata: pairs{
				{Key: "", Value: "1"},
				{Key: " ", Value: "2"},
				{Key: "a=b", Value: "3"},
				{Key: "a b", Value: "4"},
				{Key: "a\x7f", Value: "5"},
				{Key: "ho\u017ftname", Value: "6"},
				{Key: "\u212a", Value: "7"},
				{Key: "~", Value: "8"},
				{Key: "!", Value: "9"},
			}},
			want:    []string{id, protocol, "md.!=9", "md.~=8"},
			dropped: 7,
		},
		{
			name: "3.4 255 octets, and one more",
			instance: federation.Instance{Metadata: pairs{
				{Key: "a", Value: long("", 254-len("md.a="))},
				{Key: "b", Value: long("", 255-len("md.b="))},
				{Key: "c", Value: long("", 256-len("md.c="))},
				{Key: "d", Value: "after"},
			}},
			want:    []string{id, protocol, long("md.a=", 254), long("md.b=", 255), "md.d=after"},
			dropped: 1,
		},
		{
			name:     "3.4 descriptions are cut",
			instance: federation.Instance{Description: long("", 4096)},
			want:     []string{id, protocol, long("desc=", 255)},
		},
		{
			name:     "3.4 ... where a character begins",
			instance: federation.Instance{Description: long("", 249) + "\u20ac"},
			want:     []string{id, protocol, long("desc=", 254)},
		},
		{
			name:     "3.4 1,300 octets in all, dropped from the end",
			instance: federation.Instance{Metadata: manyPairs(8, 199)},
			want: []string{
				id, protocol, long("md.k0=", 199), long("md.k1=", 199), long("md.k2=", 199), long("md.k3=", 199), long("md.k4=", 199), long("md.k5=", 199),
			},
			dropped: 2,
		},
		{
			name:     "3.4 exactly 1,300 octets",
			instance: federation.Instance{Metadata: append(manyPairs(4, 255), federation.Pair{Key: "l", Value: long("", 246-len("md.l="))})},
			want: []string{
				id, protocol, long("md.k0=", 255), long("md.k1=", 255), long("md.k2=", 255), long("md.k3=", 255), long("md.l=", 246),
			},
		},
		{
			name:     "3.4 one more",
			instance: federation.Instance{Metadata: append(manyPairs(4, 255), federation.Pair{Key: "l", Value: long("", 247-len("md.l="))})},
			want:     []string{id, protocol, long("md.k0=", 255), long("md.k1=", 255), long("md.k2=", 255), long("md.k3=", 255)},
			dropped:  1,
		},
		{
			name: "3.5 backslashes, quotes, NUL and UTF-8",
			instance: federation.Instance{Metadata: pairs{
				{Key: "a", Value: `C:\dir\065x`}, {Key: "b", Value: `"quoted"`}, {Key: "c", Value: "\x00"}, {Key: "d", Value: "\u20ac"}, {Key: `e\065`, Value: `\`},
			}},
			want: []string{id, protocol, `md.a=C:\dir\065x`, `md.b="quoted"`, "md.c=\x00", "md.d=\u20ac", `md.e\065=\`},
		},
		{
			name:     "3.5 255 octets of backslashes",
			instance: federation.Instance{Description: strings.Repeat(`\`, 250)},
			want:     []string{id, protocol, "desc=" + strings.Repeat(`\`, 250)},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := service("s", federation.Instance{})
			tt.instance.ID, tt.instance.Protocol = "i", federation.HTTP
			s.Instances[0] = tt.instance
			tree := compiled(s)
			want := append([]string{"txtvers=1"}, tt.want...)
			if d := cmp.Diff([][]string{want}, instanceText(t, tree, "i")); d != "" {
				t.Errorf("instance (-want +got):\n%s", d)
			}
			if d := cmp.Diff([][]string{{"txtvers=1", "name=s"}, want}, serviceText(t, tree)); d != "" {
				t.Errorf("service (-want +got):\n%s", d)
			}
			if got := tree.Faults()[subtree.FaultTXT]; got != tt.dropped {
				t.Errorf("%d strings dropped, want %d", got, tt.dropped)
			}
		})
	}
}

// manyPairs returns n pairs of metadata whose strings have a length.
func manyPairs(n, length int) []federation.Pair {
	var pairs []federation.Pair
	for i := range n {
		key := fmt.Sprintf("k%d", i)
		pairs = append(pairs, federation.Pair{Key: key, Value: strings.Repeat("x", length-len("md.=")-len(key))})
	}
	return pairs
}

// TestServiceText has row 3.2: what the fqdn says of the service itself.
func TestServiceText(t *testing.T) {
	var instances []federation.Instance
	for _, id := range []string{"b", "a", "B", "b"} {
		instances = append(instances, federation.Instance{ID: id, Protocol: federation.HTTP})
	}
	s := service(`s\1`, instances...)
	s.Description = "d"
	s.Tags = []string{"", "a", strings.Repeat("x", 252), "b", "b"}
	s.SANs = []string{"one", "", "two"}
	s.Labels = []federation.Pair{{Key: "A", Value: "1"}, {Key: "a", Value: "2"}, {Key: "name", Value: "n"}}
	tree := compiled(s)
	want := [][]string{
		{"txtvers=1", `name=s\1`, "desc=d", "tag=a", "tag2=b", "tag3=b", "label.a=1", "label.name=n", "san=one", "san2=two"},
		{"txtvers=1", "id=B", "protocol=HTTP"},
		{"txtvers=1", "id=a", "protocol=HTTP"},
		{"txtvers=1", "id=b", "protocol=HTTP"}, // once, though there are two
	}
	if d := cmp.Diff(want, serviceText(t, tree)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(subtree.Faults{subtree.FaultTXT: 2, subtree.FaultInstanceName: 2}, tree.Faults()); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// TestTextHidesExport has the label that only importers read, which is neither told nor missed.
func TestTextHidesExport(t *testing.T) {
	s := service("s", federation.Instance{ID: "a", Protocol: federation.HTTP})
	s.Labels = []federation.Pair{{Key: "a", Value: "1"}, {Key: mcs.Label, Value: "{}"}}
	tree := compiled(s)
	if d := cmp.Diff([]string{"txtvers=1", "name=s", "label.a=1"}, serviceText(t, tree)[0]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	s.Labels[1].Value = strings.Repeat("x", 10_000)
	if faults := compiled(s).Faults(); len(faults) > 0 {
		t.Errorf("faults %v of a long label", faults)
	}
}

// FuzzText sends arbitrary text through TXT records. What arrives is what was
// sent, whole or not at all, or the beginning of a description.
func FuzzText(f *testing.F) {
	f.Add("web", "Web", "zone", "eu")
	f.Add(`C:\dir\065x`, `"`, `k\`, "\x00")
	f.Add(strings.Repeat("\u20ac", 85), strings.Repeat("\u20ac", 85), "=", strings.Repeat(`\`, 251))
	f.Fuzz(func(t *testing.T, name, description, key, value string) {
		if !utf8.ValidString(description) {
			return // protocol buffers have refused it
		}
		s := service(name, federation.Instance{ID: "i", Protocol: federation.HTTP})
		s.Description, s.Labels = description, []federation.Pair{{Key: key, Value: value}}
		total := 0
		for i, text := range serviceText(t, compiled(s))[0] {
			total += 1 + len(text)
			k, v, ok := strings.Cut(text, "=")
			switch {
			case !ok || len(text) > 255 || v == "":
				t.Fatalf("string %q", text)
			case i == 0 && text == "txtvers=1", k == "name" && v == name, k == "desc" && v == description:
			case k == "label."+mcs.Label:
				t.Fatalf("string %q is told", text)
			case k == "label."+strings.ToLower(key) && v == value:
			case k == "desc" && strings.HasPrefix(description, v) && len(text) > 255-utf8.UTFMax:
			default:
				t.Fatalf("string %q was not sent", text)
			}
		}
		if total > 1300 {
			t.Fatalf("%d octets", total)
		}
	})
}

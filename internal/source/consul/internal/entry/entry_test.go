package entry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func newRules() *Rules {
	return &Rules{Prefix: "consul/dc1/", Zone: services.FQDN("consul.example"), AddressOf: "lan"}
}

// read returns instances as an agent of Consul spells them, one for each text: fields of Service, and behind
// a bar those of the whole entry.
func read(t *testing.T, texts ...string) (all []Instance) {
	t.Helper()
	for _, text := range texts {
		fields, more, _ := strings.Cut(text, "|")
		if more == "" {
			more = `"Checks": [{"CheckID": "serfHealth", "Status": "passing"}]`
		}
		if !strings.Contains(more, `"Node"`) {
			more += `, "Node": {"Node": "n", "Address": "192.0.2.100", "TaggedAddresses": {"lan": "192.0.2.100", "wan": "198.51.100.100"}}`
		}
		var in Instance
		must.Do(t, json.Unmarshal(fmt.Appendf(nil, `{"Service": {%s}, %s}`, fields, more), &in)) //nolint:musttag // Consul's names are those of the fields
		all = append(all, in)
	}
	return all
}

// short returns a service in one line: endpoints with their labels, instances with their selectors,
// tags and labels.
func short(s *federation.Service) string {
	if s == nil {
		return ""
	}
	var words []string
	for _, e := range s.Endpoints {
		words = append(words, strings.TrimSuffix(fmt.Sprintf("%s:%d=%s", e.Address, e.Port, strings.Join(e.Labels, "+")), "="))
	}
	for _, in := range s.Instances {
		words = append(words, fmt.Sprint(in.ID, "/", in.Protocol, strings.Join(in.EndpointSelector, "+")))
	}
	words = append(words, s.Tags...)
	for _, l := range s.Labels {
		words = append(words, l.Key+"="+l.Value)
	}
	return strings.Join(words, " ")
}

// refusedWords returns the rules by which entries are not published.
func refusedWords(v Verdict) string {
	return strings.Join(slices.Sorted(maps.Keys(v.Refused)), ",")
}

func TestJudge(t *testing.T) {
	const at = `"Address": "192.0.2.1", "Port": 80`
	wide := func(r *Rules) { r.AddressOf = "wan" }
	byTag := func(r *Rules) { r.ByTag = true }
	for _, tc := range []struct {
		what      string
		rules     func(*Rules)
		instances []string
		want      string
		refused   string // with commas
		sidecars  int
	}{
		{"one", nil, []string{at}, "192.0.2.1:80 default/TCP", "", 0},
		{"none", nil, nil, "", "", 0},
		{"address of the node", nil, []string{`"Port": 80`}, "192.0.2.100:80 default/TCP", "", 0},
		{"host", nil, []string{`"Address": "DB.example", "Port": 80`}, "db.example.:80 default/TCP", "", 0},
		{"IPv6", nil, []string{`"Address": "2001:db8::1", "Port": 80`}, "2001:db8::1:80 default/TCP", "", 0},
		{
			"order and doubles", nil,
			[]string{`"Address": "192.0.2.2", "Port": 80, "Tags": ["b"]`, `"Address": "192.0.2.1", "Port": 81`, at + `, "Tags": ["z", "a"]`, `"Address": "192.0.2.2", "Port": 80, "Tags": ["a"]`},
			"192.0.2.1:80 192.0.2.1:81 192.0.2.2:80 default/TCP a b z", "", 0,
		},

		{"no address", nil, []string{`"Port": 80| "Node": {}`}, "", "missing", 0},
		{"address that is none", nil, []string{`"Address": "a..b", "Port": 80`, at}, "192.0.2.1:80 default/TCP", "address", 0},
		{"loopback", nil, []string{`"Address": "127.0.0.1", "Port": 80`}, "", "address", 0},
		{"any address", nil, []string{`"Address": "0.0.0.0", "Port": 80`}, "", "address", 0},
		{"link-local", nil, []string{`"Address": "169.254.169.254", "Port": 80`}, "", "address", 0},
		{"no port", nil, []string{`"Address": "192.0.2.1"`, at}, "192.0.2.1:80 default/TCP", "port", 0},
		{"port beyond", nil, []string{`"Address": "192.0.2.1", "Port": 65536`}, "", "port", 0},
		{"negative port", nil, []string{`"Address": "192.0.2.1", "Port": -1`}, "", "port", 0},

		{"wan of the instance", wide, []string{at + `, "TaggedAddresses": {"wan": {"Address": "198.51.100.1", "Port": 8080}}`}, "198.51.100.1:8080 default/TCP", "", 0},
		{"wan without a port", wide, []string{at + `, "TaggedAddresses": {"wan": {"address": "198.51.100.1"}}`}, "198.51.100.1:80 default/TCP", "", 0},
		{"wan of the node", wide, []string{`"Port": 80`}, "198.51.100.100:80 default/TCP", "", 0},
		{"wan of the node that is the address", wide, []string{`"Address": "192.0.2.100", "Port": 80`}, "198.51.100.100:80 default/TCP", "", 0},
		{"wan of another machine", wide, []string{at}, "", "missing", 0},
		{"key that nobody has", func(r *Rules) { r.AddressOf = "vpn" }, []string{`"Port": 80`}, "", "missing", 0},

		{"critical", nil, []string{at + `| "Checks": [{"Status": "passing"}, {"Status": "critical"}]`}, "", "", 0},
		{"warning", nil, []string{at + `| "Checks": [{"Status": "warning"}]`}, "", "", 0},
		{"warning that counts", func(r *Rules) { r.Warning = true }, []string{at + `| "Checks": [{"Status": "warning"}]`}, "192.0.2.1:80 default/TCP", "", 0},
		{"critical where warnings count", func(r *Rules) { r.Warning = true }, []string{at + `| "Checks": [{"Status": "warning"}, {"Status": "critical"}]`}, "", "", 0},
		{"maintenance", nil, []string{at + `| "Checks": [{"CheckID": "_node_maintenance", "Status": "critical"}]`}, "", "", 0},
		{"status of tomorrow", nil, []string{at + `| "Checks": [{"Status": "unheard-of"}]`}, "", "", 0},
		{"no checks", nil, []string{at + `| "Checks": null`}, "192.0.2.1:80 default/TCP", "", 0},
		{"one of two is critical", nil, []string{at + `| "Checks": [{"Status": "critical"}]`, `"Address": "192.0.2.2", "Port": 80`}, "192.0.2.2:80 default/TCP", "", 0},

		{"sidecar", nil, []string{at, `"Kind": "connect-proxy", "Address": "192.0.2.1", "Port": 21000`}, "192.0.2.1:80 default/TCP", "", 1},
		{"gateway", nil, []string{`"Kind": "mesh-gateway", "Address": "192.0.2.1", "Port": 443`}, "", "", 1},

		{"tags that are wanted", func(r *Rules) { r.Tags = []string{"public", "v1"} }, []string{at + `, "Tags": ["public", "v1", "x"]`, `"Address": "192.0.2.2", "Port": 80, "Tags": ["public"]`}, "192.0.2.1:80 default/TCP public v1 x", "", 0},

		{"protocol of meta", nil, []string{at + `, "Meta": {"protocol": "grpc"}, "Tags": ["http"]`}, "192.0.2.1:80 default/GRPC http consul.meta/protocol=grpc", "", 0},
		{"protocol of a tag", nil, []string{at + `, "Tags": ["v1", "HTTP", "tcp"]`}, "192.0.2.1:80 default/HTTP HTTP tcp v1", "", 0},
		{"protocol that is no word for a tag", nil, []string{at + `, "Tags": ["mongo"]`}, "192.0.2.1:80 default/TCP mongo", "", 0},
		{"protocol that is none", nil, []string{at + `, "Meta": {"protocol": "smtp"}`}, "192.0.2.1:80 default/TCP consul.meta/protocol=smtp", "", 0},
		{"two protocols", nil, []string{at + `, "Tags": ["http"]`, `"Address": "192.0.2.2", "Port": 80, "Tags": ["https"]`}, "192.0.2.1:80 192.0.2.2:80 default/TCP http https", "", 0},

		{"meta", nil, []string{at + `, "Meta": {"a": "1", "b": "2"}`, `"Address": "192.0.2.2", "Port": 80, "Meta": {"a": "1", "b": "3", "c": "4"}`}, "192.0.2.1:80 192.0.2.2:80 default/TCP consul.meta/a=1", "", 0},

		{"tags are no instances", nil, []string{at + `, "Tags": ["v1"]`}, "192.0.2.1:80 default/TCP v1", "", 0},
		{
			"tags are instances", byTag,
			[]string{at + `, "Tags": ["V1", "http", "a.b", "no label", "default"]`, `"Address": "192.0.2.2", "Port": 80, "Tags": ["v2", "grpc"]`, `"Address": "192.0.2.3", "Port": 80`},
			"192.0.2.1:80=http+v1 192.0.2.2:80=grpc+v2 192.0.2.3:80 default/TCP grpc/GRPCgrpc http/HTTPhttp v1/HTTPv1 v2/GRPCv2 V1 a.b default grpc http no label v2", "", 0,
		},
		{"tags that are one label", byTag, []string{at + `, "Tags": ["v1", "V1", ""]`}, "192.0.2.1:80=v1 default/TCP v1/TCPv1 V1 v1", "", 0},
		{"long tag", nil, []string{at + `, "Tags": ["` + strings.Repeat("t", limits.TagBytes+1) + `"]`}, "", "limit", 0},
		{"longest tag", nil, []string{at + `, "Tags": ["` + strings.Repeat("t", limits.TagBytes) + `"]`}, "192.0.2.1:80 default/TCP " + strings.Repeat("t", limits.TagBytes), "", 0},
	} {
		rules := newRules()
		if tc.rules != nil {
			tc.rules(rules)
		}
		instances := read(t, tc.instances...)
		for range 2 {
			v := rules.Judge("web", instances)
			got := ""
			if v.Service != nil {
				got = short(v.Service.Service())
			}
			if got != tc.want || refusedWords(v) != tc.refused || v.Sidecars != tc.sidecars {
				t.Errorf("%s:\ngot  %s, refused %v, sidecars %d\nwant %s, refused %s", tc.what, got, v.Refused, v.Sidecars, tc.want, tc.refused)
			}
			slices.Reverse(instances) // the order is nothing
		}
	}
}

// The names of a service are those of Consul, and what is no label has a rule.
func TestNames(t *testing.T) {
	instances := read(t, `"Address": "192.0.2.1", "Port": 80`)
	for name, want := range map[string]string{
		"web": "web.consul.example", "Web": "web.consul.example", "shop-db": "shop-db.consul.example", "my_app": "my_app.consul.example",
		"a.b": "", "_web": "", "web app": "", "": "", "web-": "", strings.Repeat("a", 64): "", "ümit": "xn--mit-goa.consul.example", "web@2": "", "a/b": "",
	} {
		v := newRules().Judge(name, instances)
		switch {
		case want == "":
			if v.Service != nil || refusedWords(v) != "name" && refusedWords(v) != "missing" {
				t.Errorf("%q is published, or refused by %v", name, v.Refused)
			}
		case v.Service == nil:
			t.Errorf("%q is refused by %v", name, v.Refused)
		default:
			if diff := cmp.Diff([]string{"consul/dc1/" + name, want}, []string{v.Service.Name(), v.Service.FQDN()}); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// A service has as many endpoints, tags and instances as a service can have; the others are refused.
func TestLimits(t *testing.T) {
	instances := func(n int, tags func(i int) string) []Instance {
		var texts []string
		for i := range n {
			texts = append(texts, fmt.Sprintf(`"Address": "192.0.2.1", "Port": %d, "Tags": [%s]`, i+1, tags(i)))
		}
		return read(t, texts...)
	}
	none := func(int) string { return "" }
	rules := newRules()
	rules.ByTag = true
	for _, tc := range []struct {
		what                       string
		instances                  []Instance
		endpoints, tags, ids, over int
	}{
		{"at the limit", instances(limits.Endpoints, none), limits.Endpoints, 0, 1, 0},
		{"beyond it", instances(limits.Endpoints+2, none), limits.Endpoints, 0, 1, 2},
		{"many tags", instances(100, func(i int) string { return fmt.Sprintf(`"t%d"`, i) }), 100, limits.Tags, 101, 0},
		{"more tags than instances", instances(limits.Endpoints, func(i int) string { return fmt.Sprintf(`"t%d"`, i) }), limits.Endpoints, limits.Tags, 1, 0},
	} {
		v := rules.Judge("web", tc.instances)
		if v.Service == nil {
			t.Fatalf("%s: refused by %v", tc.what, v.Refused)
		}
		s := v.Service.Service()
		if len(s.Endpoints) != tc.endpoints || len(s.Tags) != tc.tags || len(s.Instances) != tc.ids || v.Refused["limit"] != tc.over {
			t.Errorf("%s: %d endpoints, %d tags, %d instances, %d refused", tc.what, len(s.Endpoints), len(s.Tags), len(s.Instances), len(v.Refused))
		}
	}
}

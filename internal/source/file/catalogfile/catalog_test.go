package catalogfile

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// lines renders problems as "3: service ...".
func lines(problems []problem.Problem) []string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
	}
	return lines
}

const webYAML = `services:
- name: web
  fqdn: web.example.org
  description: "the \U0001F578"
  tags: [no, 2024-01-02, "1.10"]
  labels: {1: "one", yes: "2", 2024-01-02: a}
  sans: [spiffe://example.org/web]
  endpoints:
  - address: 192.0.2.1
    port: 8080
    labels: [eu]
  instances:
  - id: v1
    protocol: HTTP
    metadata: {PORT: "80"}
    endpoint_selector: [eu]
`

// webJSON has escapes that YAML does not have, and a field in its JSON name.
const webJSON = `{
	"services": [
		{"name": "web", "fqdn": "web\u002eexample.org", "description": "the \ud83d\udd78",
		 "tags": ["no", "2024-01-02", "1.10"],
		 "labels": {"1": "one", "yes": "2", "2024-01-02": "a"},
		 "sans": ["spiffe:\/\/example.org\/web"],
		 "endpoints": [{"address": "192.0.2.1", "port": 8080, "labels": ["eu"]}],
		 "instances": [{"id": "v1", "protocol": "HTTP", "metadata": {"PORT": "80"}, "endpointSelector": ["eu"]}]}
	]
}
`

func TestParse(t *testing.T) {
	web := service("web", 0)
	web.Description = "the \U0001F578"
	web.Tags = []string{"no", "2024-01-02", "1.10"}
	web.Labels = []federation.Pair{{Key: "1", Value: "one"}, {Key: "2024-01-02", Value: "a"}, {Key: "yes", Value: "2"}}
	web.SANs = []string{"spiffe://example.org/web"}
	web.Endpoints[0].Port = 8080
	web.Endpoints[0].Labels = []string{"eu"}
	web.Instances = []federation.Instance{{
		ID: "v1", Protocol: federation.HTTP, Metadata: []federation.Pair{{Key: "PORT", Value: "80"}}, EndpointSelector: []string{"eu"},
	}}
	for name, data := range map[string]string{"yaml": webYAML, "json": webJSON} {
		c := Parse([]byte(data), wire.AddressPolicy{})
		if diff := cmp.Diff([]string(nil), lines(append(c.Problems, c.Warnings...))); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", name, diff)
			continue
		}
		if err := c.Err(); err != nil {
			t.Errorf("%s: error is %v, expected none", name, err)
		}
		if len(c.Services) != 1 || !c.Services[0].Equal(must.Get(wire.NewEncoded(web))(t)) {
			t.Errorf("%s: services are %+v, expected %+v", name, c.Services, web)
		}
	}
}

// TestDocumentedCatalogs reads the catalogs of docs/catalog.md. The service of the smallest one has
// the one instance of a service that lists none.
func TestDocumentedCatalogs(t *testing.T) {
	document := must.Get(os.ReadFile("../../../../docs/catalog.md"))(t)
	var catalogs []Catalog
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(document, -1) {
		c := Parse(block[1], wire.AddressPolicy{})
		if diff := cmp.Diff([]string(nil), lines(append(c.Problems, c.Warnings...))); diff != "" {
			t.Errorf("unexpected problems (-want +got):\n%s in\n%s", diff, block[1])
		}
		catalogs = append(catalogs, c)
	}
	if len(catalogs) != 2 || len(catalogs[0].Services) != 1 || len(catalogs[1].Services) != 1 {
		t.Fatalf("docs/catalog.md has %d catalogs, expected 2 of one service each", len(catalogs))
	}
	want := []federation.Instance{{ID: "default", Protocol: federation.TCP}}
	if diff := cmp.Diff(want, catalogs[0].Services[0].Service().Instances); diff != "" {
		t.Errorf("instances of the smallest service (-want +got):\n%s", diff)
	}
	other := Parse([]byte(`{"services": [{"name": "a", "fqdn": "a.example", "protocol": "grpc", "endpoints": [{"address": "192.0.2.1", "port": 80}]}]}`), wire.AddressPolicy{})
	want[0].Protocol = federation.GRPC
	if diff := cmp.Diff(want, other.Services[0].Service().Instances); diff != "" {
		t.Errorf("instances of a service with a protocol (-want +got):\n%s", diff)
	}
}

// rest completes a service that has a name and an fqdn.
const rest = `  endpoints: [{address: 192.0.2.1, port: 80}]
  instances: [{id: i1, protocol: TCP}]
`

func TestParseProblems(t *testing.T) {
	for _, tt := range []struct {
		name string
		data string
		want []string
	}{
		{"empty list", "services: []\n", nil},
		{"empty list in JSON", `{"services": []}`, nil},
		{"empty", "", []string{"0: the file is empty; an empty catalog is 'services: []'"}},
		{"comment only", "# nothing\n", []string{"0: the file is empty; an empty catalog is 'services: []'"}},
		{"no mapping", "- a\n", []string{"1: " + expectServices}},
		{"no mapping in JSON", "[]", []string{"1: " + expectServices}},
		{"scalar", "null", []string{"1: " + expectServices}},
		{"empty mapping", "{}", []string{"0: " + expectServices}},
		{"no list", "services:\n", []string{"1: services must be a list; an empty one is []"}},
		{"no list in JSON", "{\"services\":\n{}}", []string{"1: services must be a list; an empty one is []"}},
		{"other key", "services: []\nversion: 1\n", []string{`2: unknown key "version"; ` + expectServices}},
		{"other key in JSON", "{\"services\": [],\n\"version\": 1}", []string{`2: unknown key "version"; ` + expectServices}},
		{"twice", "services: []\nservices: []\n", []string{"2: services is there twice"}},
		{"twice in JSON", `{"services": [], "services": []}`, []string{"1: services is there twice"}},
		{"two documents", "services: []\n---\nservices: []\n", []string{"2: a second document begins here; a catalog is one document"}},
		{"syntax", "services:\n- name: a\n fqdn: b\n", []string{"2: did not find expected key"}},
		{"syntax after the document", "services: []\n---\n{\n", []string{"3: did not find expected node content"}},
		{"truncated JSON", "{\"services\": [\n{\"name\": \"a\"", []string{"1: did not find expected ',' or '}'"}},
		{"truncated key", "servi", []string{"1: " + expectServices}},
		{"truncated list", "services: [", []string{"1: did not find expected node content"}},
		{"document marker", "---\n", []string{"0: the file is empty; an empty catalog is 'services: []'"}},
		{"empty string", "services: ''\n", []string{"1: services must be a list; an empty one is []"}},
		{"zeros", "services:\n\x00\x00\x00", []string{"0: control characters are not allowed"}},
		{"not UTF-8", "services:\n- name: \xff\n", []string{"0: invalid leading UTF-8 octet"}},
		{"key twice", "services:\n- name: a\n  name: b\n", []string{`3: service services[0]: mapping key "name" already defined at line 2`}},
		{"contains itself", "services:\n- &a\n  tags: *a\n", []string{`3: service services[0]: aliases (*a) are not resolved here; write the value again`}},
		{"no JSON number", "services:\n- name: .inf\n", []string{"2: service services[0]: +Inf is no number that JSON has"}},
		{"huge JSON number", `{"services": [{"endpoints": [{"port": 1e999}]}]}`, []string{"1: service services[0]: json: cannot unmarshal number 1e999 into Go value of type float64"}},
		{"scalar service", "services:\n- web\n- ~\n", []string{
			"2: service services[0]: a service must be a mapping",
			"3: service services[1]: a service must be a mapping",
		}},
		{"wrong type", "services:\n- name: a\n  fqdn: 1.5\n" + rest, []string{`3: service "a": fqdn: must be a string, not 1.5`}},
		{"wrong types everywhere", `services:
- name: a
  fqdn: [a.example]
  description: 7
  tags: [a, 1]
  labels: {a: 1}
  endpoints:
  - address: 192.0.2.1
    port: http
  - address: "192.0.2.1:80"
    port: "80"
  - ~
  instances:
  - {id: i1, protocol: TCP, endpoint_selector: eu}
  - i2
- name: b
  endpoints: 7
  instances: [{id: i1, protocol: TCP}]
`, []string{
			`3: service "a": fqdn: must be a string, not a list`,
			`4: service "a": description: must be a string, not 7`,
			`5: service "a": tags[1]: must be a string, not 1`,
			`6: service "a": labels["a"]: must be a string, not 1`,
			`9: service "a": endpoints[0].port: must be a whole number from 0 on, not "http"`,
			`10: service "a": endpoints[1].address: address is neither an IP address nor a host name: "192.0.2.1:80"`,
			`12: service "a": endpoints[2]: must be a mapping, not nothing`,
			`14: service "a": instances[0].endpoint_selector: must be a list of strings, not "eu"`,
			`15: service "a": instances[1]: must be a mapping, not "i2"`,
			`16: service "b": fqdn: required`,
			`17: service "b": endpoints: must be a list of mappings, not 7`,
		}},
		{"many mistakes in one place", fmt.Sprintf(`services:
- name: a
  fqdn: a.example
  tags:
  - %[1]s
  - fine
  - %[1]s
  labels: {"%[1]sa": "", "%[1]sbb": "", "[0]": ""}
  endpoints:
  - {address: 192.0.2.1, port: 80}
  - address: 127.0.0.1
    port: 99999
    labels: [a, b, %[1]s]
  instances:
  - id: ""
    protocol: SMTP
    metadata: {"%[1]s": "", "[0]": "%[2]s"}
`, strings.Repeat("x", limits.TagBytes+1), strings.Repeat("x", limits.ValueBytes+1)), []string{
			`5: service "a": tags[0]: 513 bytes, the limit is 512`,
			`7: service "a": tags[2]: 513 bytes, the limit is 512`,
			`8: service "a": labels["` + strings.Repeat("x", 128) + `"... (514 bytes)].key: 514 bytes, the limit is 512`,
			`8: service "a": labels["` + strings.Repeat("x", 128) + `"... (515 bytes)].key: 515 bytes, the limit is 512`,
			`11: service "a": endpoints[1].address: 127.0.0.1: consumers refuse loopback addresses unless their allow_addresses has them`,
			`12: service "a": endpoints[1].port: 99999 is not in 1 to 65535`,
			`13: service "a": endpoints[1].labels[2]: 513 bytes, the limit is 512`,
			`15: service "a": instances[0].id: required`,
			`16: service "a": instances[0].protocol: "SMTP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS`,
			`17: service "a": instances[0].metadata["[0]"].value: 16385 bytes, the limit is 16384`,
			`17: service "a": instances[0].metadata["` + strings.Repeat("x", 128) + `"... (513 bytes)].key: 513 bytes, the limit is 512`,
		}},
		{"what is empty, and what is there twice", `services:
- name: a
  fqdn: a.example
  tags: [""]
  endpoints:
  - address: localhost
    port: 80
    labels: [eu, ""]
  instances:
  - {id: v1, protocol: TCP}
  - id: v1
    protocol: HTTP
    endpointSelector: [""]
`, []string{
			`4: service "a": tags[0]: is empty; leave it out`,
			`6: service "a": endpoints[0].address: localhost: consumers refuse loopback addresses unless their allow_addresses has them`,
			`8: service "a": endpoints[0].labels[1]: is empty; leave it out`,
			`11: service "a": instances[1].id: "v1" is the ID of instances[0] as well`,
			`13: service "a": instances[1].endpoint_selector[0]: is empty; leave it out`,
		}},
		{"nothing in it", "services:\n- {}\n", []string{
			"2: service services[0]: name: required",
			"2: service services[0]: fqdn: required",
			"2: service services[0]: endpoints: at least one is required",
		}},
		{"the one instance", "services:\n- name: a\n  fqdn: a.example\n  endpoints: [{address: 192.0.2.1, port: 80}]\n  protocol: SMTP\n" +
			"- name: b\n  fqdn: b.example\n  endpoints: [{address: 192.0.2.1, port: 80}]\n  protocol: 7\n" +
			"- name: c\n  fqdn: c.example\n  endpoints: [{address: 192.0.2.1, port: 80}]\n  instances: []\n" +
			"- name: d\n  fqdn: d.example\n  protocol: TCP\n" + rest, []string{
			`5: service "a": protocol: "SMTP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS`,
			`9: service "b": protocol: must be a string, not 7`,
			`13: service "c": instances: at least one is required`,
			`16: service "d": there is no field "protocol"`,
		}},
		{"everything wrong", `services:
- name: a
  fqdn: a_.-b
  adresse: 192.0.2.1
  endpoints:
  - {address: 192.0.2.1, port: 80}
  - address: 127.0.0.1
    port: 80
  - address: 192.0.2.1
    port: 0
    prt: 1
  instances:
  - id: i1
    protocol: SMTP
  - {id: i2, protocol: TCP, endpointSelectors: [a]}
`, []string{
			`3: service "a": fqdn: label begins or ends with '-': "a_.-b"`,
			`4: service "a": there is no field "adresse"`,
			`7: service "a": endpoints[1].address: 127.0.0.1: consumers refuse loopback addresses unless their allow_addresses has them`,
			`10: service "a": endpoints[2].port: 0 is not in 1 to 65535`,
			`11: service "a": endpoints[2]: there is no field "prt"`,
			`14: service "a": instances[0].protocol: "SMTP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS`,
			`15: service "a": instances[1]: there is no field "endpointSelectors"`,
		}},
		{"field twice in JSON", `{"services": [{"name": "a", "name": "b"}]}`, []string{`1: service "b": duplicate field "name"`}},
		{"everything wrong in JSON", `{"services": [
  {"name": "a", "fqdn": "", "x": 1,
   "endpoints": [{"address": "192.0.2.1"}],
   "instances": [{"id": "i1", "protocol": "TCP"}]
  }
]}`, []string{
			`2: service "a": there is no field "x"`,
			`2: service "a": fqdn: required`,
			`3: service "a": endpoints[0].port: 0 is not in 1 to 65535`,
		}},
		{"too many", "services:\n- name: a\n  fqdn: a.example\n  tags: [" + strings.Repeat("x, ", limits.Tags) + "x]\n" + rest, []string{
			`4: service "a": tags: more than 64 entries`,
		}},
		{"same name", "services:\n- name: a\n  fqdn: a.example\n" + rest + "-\n  fqdn: b.example\n  name: a\n" + rest, []string{
			`8: service "a": name: the service on line 2 has the same name; a name stands for one service`,
		}},
		{"unprintable", "services:\n- name: \"\\e[31m\"\n  \"\\e\": 1\n  fqdn: a.example\n" + rest, []string{
			`3: service "\x1b[31m": there is no field "\x1b"`,
		}},
		{"alias", "services:\n- name: a\n  fqdn: a.example\n  endpoints: &e\n  - {address: 192.0.2.1, port: 0}\n  instances: [{id: i1, protocol: TCP}]\n" +
			"- name: b\n  fqdn: b.example\n  endpoints: *e\n  instances: [{id: i1, protocol: TCP}]\n", []string{
			`5: service "a": endpoints[0].port: 0 is not in 1 to 65535`,
			`9: service services[1]: aliases (*e) are not resolved here; write the value again`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Parse([]byte(tt.data), wire.AddressPolicy{})
			if diff := cmp.Diff(tt.want, lines(c.Problems)); diff != "" {
				t.Errorf("unexpected problems (-want +got):\n%s", diff)
			}
			if (c.Err() == nil) != (len(tt.want) == 0) {
				t.Errorf("error is %v", c.Err())
			}
		})
	}
}

func TestParsePolicy(t *testing.T) {
	data := []byte("services:\n- name: a\n  fqdn: a.example\n  endpoints: [{address: 127.0.0.1, port: 80}]\n  instances: [{id: i1, protocol: TCP}]\n")
	if c := Parse(data, wire.AddressPolicy{}); len(c.Problems) != 1 {
		t.Errorf("problems are %v, expected one", lines(c.Problems))
	}
	policy := wire.AddressPolicy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	if c := Parse(data, policy); len(c.Problems) != 0 || len(c.Services) != 1 {
		t.Errorf("problems are %v, expected none", lines(c.Problems))
	}
}

func TestParseWarnings(t *testing.T) {
	longID := strings.Repeat(strings.Repeat("x", 62)+".", 4)[:250]
	data := `services:
- name: zebra
  fqdn: a.example
  endpoints:
  - {address: 192.0.2.1, port: 80, labels: [eu]}
  - {address: 192.0.2.2, port: 80, labels: [us]}
  instances:
  - {id: i1, protocol: TCP, endpoint_selector: [eu]}
  - {id: I1, protocol: TCP, endpoint_selector: [eu]}
  - id: not a name
    protocol: TCP
    endpoint_selector: [eu]
- name: ant
  fqdn: A.example.
  endpoints:
  - {address: 192.0.2.1, port: 80, labels: [eu]}
  - {address: gw.example.net, port: 80}
  instances:
  - {id: i1, protocol: TCP}
  - id: i2
    protocol: TCP
    endpoint_selector: [asia]
  - {id: "` + longID + `", protocol: TCP}
`
	c := Parse([]byte(data), wire.AddressPolicy{})
	want := []string{
		`2: service "zebra": fqdn: a.example. is also the fqdn of service "ant", which wins: consumers will not answer this one`,
		`6: service "zebra": endpoints[1]: no instance selects 192.0.2.2, so only the name of the service leads to it`,
		`9: service "zebra": instances[1].id: "i1" and "I1" are one DNS name; one of the two instances will have none`,
		`10: service "zebra": instances[2].id: "not a name" will have no DNS name of its own: label has a character other than a-z, 0-9, '-' and '_'`,
		`22: service "ant": instances[1].endpoint_selector: no endpoint has one of these labels, so the instance gets every endpoint`,
		`23: service "ant": instances[2].id: ` + safetext.Quote(longID) + ` will have no DNS name of its own: name is longer than 254 characters with its final dot`,
	}
	if diff := cmp.Diff(want, lines(c.Warnings)); diff != "" {
		t.Errorf("unexpected warnings (-want +got):\n%s", diff)
	}
	if len(c.Problems) != 0 || len(c.Services) != 2 {
		t.Errorf("%d services with problems %v, expected 2 with none", len(c.Services), lines(c.Problems))
	}
}

// TestServicesOfOneFQDN has as many services of one fqdn as consumers take, and one more.
func TestServicesOfOneFQDN(t *testing.T) {
	data := "services:\n"
	for i := range packed.MaxServicesPerFQDN {
		data += fmt.Sprintf("- name: s%02d\n  fqdn: web.example\n", i) + rest
	}
	if c := Parse([]byte(data), wire.AddressPolicy{}); len(c.Problems) > 0 {
		t.Errorf("%d services have problems: %v", packed.MaxServicesPerFQDN, lines(c.Problems))
	}
	c := Parse([]byte(data+"- name: a\n  fqdn: web.example\n"+rest+"- name: b\n  fqdn: web.example\n"+rest), wire.AddressPolicy{})
	want := []string{`254: service "s63": fqdn: web.example. has more than 64 services, which consumers refuse; give them other fqdns`}
	if diff := cmp.Diff(want, lines(c.Problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestCatalogErrIsBounded(t *testing.T) {
	c := Parse([]byte("services:\n"+strings.Repeat("- {name: a}\n", 100)), wire.AddressPolicy{})
	err := c.Err()
	if err == nil || !strings.HasSuffix(err.Error(), "; and at least 145 more") || len(err.Error()) > 1000 {
		t.Errorf("error is %v, expected five problems and a bound of the others", err)
	}
}

// BenchmarkParse reads a catalog of 10,000 services.
func BenchmarkParse(b *testing.B) {
	const services = 10_000
	var yaml, json strings.Builder
	yaml.WriteString("services:\n")
	json.WriteString("{\"services\": [\n")
	for i := range services {
		fmt.Fprintf(&yaml, "- name: s%d\n  fqdn: s%d.example.org\n%s", i, i, rest)
		if i > 0 {
			json.WriteString(",\n")
		}
		fmt.Fprintf(&json, `{"name": "s%d", "fqdn": "s%d.example.org", "endpoints": [{"address": "192.0.2.1", "port": 80}], `+
			`"instances": [{"id": "i1", "protocol": "TCP"}]}`, i, i)
	}
	json.WriteString("]}")
	for name, data := range map[string][]byte{"yaml": []byte(yaml.String()), "json": []byte(json.String())} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if c := Parse(data, wire.AddressPolicy{}); len(c.Services) != services {
					b.Fatal(c.Err())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*services), "ns/service")
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(webYAML))
	f.Add([]byte(webJSON))
	f.Add([]byte("services:\n- &a\n  name: a\n  fqdn: a.example\n" + rest + "- <<: *a\n  name: b\n"))
	f.Add([]byte(`{"services": [{"name": "a", "endpoints": [{}, {"x": 1}]}, null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Parse(data, wire.AddressPolicy{})
		// YAML 1.1 has all of these line breaks; one of two bytes counts once at most.
		last := 2 // an empty document stands behind the last line
		for _, newline := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
			last += strings.Count(string(data), newline)
		}
		for _, p := range append(c.Problems, c.Warnings...) {
			if p.Line < 0 || p.Line > last || p.Rule == "" {
				t.Errorf("problem %+v in a file of %d lines", p, last)
			}
		}
		names := make(map[string]bool)
		for _, encoded := range c.Services {
			s := encoded.Service()
			if names[s.Name] {
				t.Errorf("name %q is there twice", s.Name)
			}
			names[s.Name] = true
			// What is published must be what a consumer takes.
			again, err := wire.DecodeService(must.Get(wire.EncodeService(s))(t), wire.AddressPolicy{})
			if err != nil || !again.Equal(s) {
				t.Errorf("a consumer gets %+v (%v), expected %+v", again, err, s)
			}
		}
	})
}

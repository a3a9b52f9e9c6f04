package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// tableRow is a name, relative to a zone, with types that each get the same reply, as told has it.
type tableRow struct{ name, types, want string }

// The replies without answers.
const (
	noData   = "NOERROR, SOA"
	nxDomain = "NXDOMAIN, SOA"
)

// transports are the ways in which every row is tested: one without EDNS, one with the name in
// upper case.
var transports = []struct {
	network string
	size    uint16 // of the client's buffer; 0 is no EDNS
	upper   bool
}{
	{"udp", 0, false},
	{"udp", 4096, true},
	{"tcp", 1232, false},
}

// checkTable tests every row over every transport.
func checkTable(t *testing.T, address, zone string, rows []tableRow) {
	t.Helper()
	for _, row := range rows {
		for qtype := range strings.FieldsSeq(row.types) {
			for _, over := range transports {
				name := strings.TrimPrefix(row.name+"."+zone, ".")
				if over.upper {
					name = strings.ToUpper(name)
				}
				question := new(dns.Msg).SetQuestion(name, dns.StringToType[qtype])
				if over.size > 0 {
					question.SetEdns0(over.size, false)
				}
				m := must.Get(exchange(over.network, address, question))(t)
				if got := told(m); got != row.want || m.Question[0] != question.Question[0] || !m.Authoritative || m.Truncated ||
					(m.IsEdns0() == nil) != (over.size == 0) {
					t.Errorf("%s %s over %v: %s, want %s\n%v", name, qtype, over, got, row.want, m)
				}
			}
		}
	}
}

// exchange sends a query over udp or tcp.
func exchange(network, address string, question *dns.Msg) (*dns.Msg, error) {
	reply, _, err := (&dns.Client{Net: network, Timeout: await.Patience}).Exchange(question, address)
	return reply, err
}

var serial = regexp.MustCompile(`(hostmaster\.\S*) \d+`)

// told returns a reply as one line: the code, the answers with their TTLs, the types of the
// authority, and behind a plus sign what is beside them.
func told(m *dns.Msg) string {
	words := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		line := strings.TrimPrefix(rr.String(), rr.Header().String())
		words = append(words, fmt.Sprintf("%d %s %s", rr.Header().Ttl, dns.TypeToString[rr.Header().Rrtype], serial.ReplaceAllString(line, "$1 SERIAL")))
	}
	for _, rr := range m.Ns {
		words = append(words, dns.TypeToString[rr.Header().Rrtype])
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			words = append(words, "+ "+strings.ReplaceAll(rr.String(), "\t", " "))
		}
	}
	return strings.Join(words, ", ")
}

// startNameserver starts a name server elsewhere in DNS, which answers for the hosts of
// endpoints. Its reply for a name is given as text: "TTL TYPE RDATA", or the name of an
// rcode. Other names do not exist.
func startNameserver(t testing.TB, names map[string]string) (address string) {
	t.Helper()
	address = loopback.Address(t)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		name := r.Question[0].Name // in the case in which it was asked
		says, ok := names[strings.ToLower(name)]
		if code, isCode := dns.StringToRcode[says]; isCode {
			m.Rcode = code
		} else if rr, err := dns.NewRR(name + " " + says); !ok || err != nil {
			m.Rcode = dns.RcodeNameError
		} else if rr.Header().Rrtype == r.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m) // a client that is gone needs no reply
	})
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		server := &dns.Server{Addr: address, Net: network, Handler: handler, NotifyStartedFunc: func() { close(started) }}
		must.Run(t, func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { _ = server.Shutdown() })
			defer stop()
			return server.ListenAndServe()
		})
		<-started
	}
	return address
}

// fixtureService returns a service with endpoints as "address:port" or
// "address:port@[label]", and instances as "id PROTOCOL" or "id PROTOCOL@[selector]".
func fixtureService(name, fqdn string, endpoints, instances []string) *federation.Service {
	s := &federation.Service{Name: name, FQDN: services.FQDN(fqdn)}
	for _, e := range endpoints {
		target, label, labelled := strings.Cut(strings.TrimSuffix(e, "]"), "@[")
		host, port, _ := net.SplitHostPort(target)
		number := must.Value(strconv.ParseUint(port, 10, 16))
		endpoint := federation.Endpoint{Address: must.Value(federation.ParseAddress(host)), Port: uint16(number)}
		if labelled {
			endpoint.Labels = []string{label}
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	for _, i := range instances {
		what, selector, selects := strings.Cut(strings.TrimSuffix(i, "]"), "@[")
		at := strings.LastIndexByte(what, ' ')
		protocol, _ := federation.ParseProtocol(what[at+1:])
		instance := federation.Instance{ID: what[:at], Protocol: protocol}
		if selects {
			instance.EndpointSelector = []string{selector}
		}
		s.Instances = append(s.Instances, instance)
	}
	return s
}

// webService returns a service with everything in it.
func webService() *federation.Service {
	web := fixtureService("web", "web.fed.example",
		[]string{"192.0.2.1:8080@[eu]", "[2001:db8::1]:8443@[us]", "gw.example.net:443@[us]"},
		[]string{"v1 HTTP@[eu]", "v2 HTTPS@[none]"})
	web.Description, web.Tags, web.SANs = "Web", []string{"a", "b"}, []string{"spiffe://o1/web"}
	web.Labels = []federation.Pair{{Key: "App", Value: "x"}}
	web.Instances[0].Metadata = []federation.Pair{{Key: "HOSTNAME", Value: "web.int"}, {Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"}}
	return web
}

// firstOwner returns services of many shapes.
func firstOwner() []*federation.Service {
	service := func(name string, endpoints []string, instances ...string) *federation.Service {
		return fixtureService("s-"+name, strings.TrimPrefix(name+".fed.example", "."), endpoints, instances)
	}
	numbered := func(n int) (endpoints []string) {
		for i := range n {
			endpoints = append(endpoints, fmt.Sprintf("192.0.2.%d:443", 100+i))
		}
		return endpoints
	}
	one := []string{"192.0.2.1:443"}
	text := service("text", one, "v1 TCP")
	text.Description = strings.Repeat("é", 200)     // 400 octets
	text.Instances[0].Metadata = []federation.Pair{ // some can be in no TXT record
		{Key: "a=b", Value: "no key"},
		{Key: "b254", Value: strings.Repeat("x", 254-len("md.b254="))},
		{Key: "b256", Value: strings.Repeat("z", 256-len("md.b256="))},
		{Key: "back", Value: `C:\dir\065x`},
		{Key: "empty"},
		{Key: "nul", Value: "a\x00b"},
		{Key: "quote", Value: `say "hi"`},
		{Key: "utf", Value: "grüße"},
	}
	return []*federation.Service{
		webService(),
		service("deep.a.b", []string{"192.0.2.9:5432"}, "DB.r1 TCP"),
		service("", []string{"192.0.2.80:443"}, "Edge TLS"),
		service("mixed", []string{"192.0.2.1:443", "dup.example.net:443", "gw.example.net:443"}, "v1 HTTPS"),
		service("nx", []string{"nx.example.net:443"}, "v1 HTTPS"),
		service("ula", []string{"[fd00::1]:443"}, "v1 HTTPS"),
		service("ports", []string{"192.0.2.1:80", "192.0.2.1:443", "192.0.2.1:80"}, "v1 HTTP", "v2 HTTPS"),
		service("eight", numbered(8), "v1 HTTPS"), service("forty", numbered(40), "v1 HTTPS"),
		service("bücher", one, "Bücher HTTP"),
		service("ids", one, "no name HTTP", "_x HTTP", "addr HTTP", "x.addr HTTP", "a_b HTTP", "TWICE TCP", "twice TLS"),
		text,
	}
}

// federationBlock returns a server block for a zone: the lines of extra, and a
// federation block for each owner, which is "ADDRESS" or "ADDRESS PROPERTIES". The
// properties may be several lines.
func federationBlock(p *place.Place, zone, extra string, owners ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:PORT {\n\tbind 127.0.0.1\n", zone)
	for line := range strings.Lines(extra) {
		b.WriteString("\t" + strings.TrimSuffix(line, "\n") + "\n")
	}
	for _, o := range owners {
		address, properties, _ := strings.Cut(o, " ")
		fmt.Fprintf(&b, "\tfederation {\n\t\towner %s\n\t\t%s\n\t\t%s\n\t}\n", address, tlsOf(p), properties)
	}
	b.WriteString("}\n")
	return b.String()
}

// TestDocumentedAnswers asks a process the questions of docs/answers.md, about the service that is
// there, and compares the answers.
func TestDocumentedAnswers(t *testing.T) {
	t.Parallel()
	var catalog, answers string
	for _, b := range documentAt(t, "docs/answers.md").blocks {
		switch b.language {
		case "yaml":
			catalog += b.text
		case "text":
			answers += b.text
		}
	}
	published := catalogfile.Parse([]byte(catalog), wire.AddressPolicy{})
	if len(published.Problems) > 0 || len(published.Services) != 1 {
		t.Fatalf("the page has %d services and the problems %v", len(published.Services), published.Problems)
	}
	p := newPlace(t)
	o := startOwner(t, p, published.Services[0].Service())
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))
	d.awaitComplete(t, "nope.fed.example")

	want := make(map[string][]string)
	var asked string // the question that a line without one belongs to
	for line := range strings.Lines(answers) {
		question, answer, _ := strings.Cut(strings.TrimRight(line, "\n"), "  ")
		if question != "" {
			asked = question
		}
		want[asked] = append(want[asked], strings.TrimSpace(answer))
	}
	if len(want) < 10 {
		t.Errorf("the page has %d questions", len(want))
	}
	for question, answers := range want {
		name, qtype, _ := strings.Cut(question, " ")
		m := mustQuery(t, d.address, name, dns.StringToType[qtype])
		got := summary(m)
		switch {
		case m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0:
			got = "NODATA"
		case m.Rcode == dns.RcodeSuccess:
			got = strings.TrimPrefix(got, "NOERROR ")
		}
		slices.Sort(answers)
		if diff := cmp.Diff(strings.Join(answers, " "), got); diff != "" {
			t.Errorf("%s (-docs/answers.md +got):\n%s", question, diff)
		}
	}
}

// TestDocumentedForwarding has each server block of docs/places.md ask a CoreDNS with the plugin, and
// compares the zone of kube-dns with that of the blocks.
func TestDocumentedForwarding(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := startOwner(t, p, simpleService("web", "web.shop.west.fed.example", "192.0.2.1"))
	resolver := startCoreDNS(t, federationBlock(p, "west.fed.example", "", o.address))
	resolver.awaitComplete(t, "nope.west.fed.example")
	blocks := 0
	for _, b := range documentAt(t, "docs/places.md").blocks {
		switch b.language {
		case "text":
			blocks++
			corefile := strings.NewReplacer(
				":53 ", ":PORT ",
				"169.254.20.10 10.96.0.10", "127.0.0.1", // where a node has its cache
				"10.96.0.53", resolver.address,
			).Replace(b.text)
			startCoreDNS(t, corefile).awaitAnswer(t, "web.shop.west.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
		case "yaml":
			blocks++
			var config struct{ Data struct{ StubDomains string } }
			var stubs map[string][]string
			must.Do(t, yaml.Unmarshal([]byte(strings.Replace(b.text, "stubDomains", "stubdomains", 1)), &config))
			must.Do(t, json.Unmarshal([]byte(config.Data.StubDomains), &stubs))
			if diff := cmp.Diff(map[string][]string{"west.fed.example": {"10.96.0.53"}}, stubs); diff != "" {
				t.Errorf("stub domains (-want +docs/places.md):\n%s", diff)
			}
		}
	}
	if blocks != 3 {
		t.Errorf("docs/places.md has %d examples", blocks)
	}
}

// TestDocumentedStubZone has Unbound ask a CoreDNS with the plugin, by the line of docs/places.md.
func TestDocumentedStubZone(t *testing.T) {
	t.Parallel()
	program(t, "unbound", "unbound")
	row := regexp.MustCompile("(?m)^ *\\| Unbound \\| `(.*)` with `(.*)` and `(.*)` \\|$").FindStringSubmatch(documentAt(t, "docs/places.md").prose)
	if row == nil {
		t.Fatal("docs/places.md has no line for Unbound")
	}
	p := newPlace(t)
	o := startOwner(t, p, simpleService("web", "web.fed.example", "192.0.2.1"))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))
	d.awaitComplete(t, "nope.fed.example")
	server := strings.Replace(row[3], "192.0.2.53", strings.Replace(d.address, ":", "@", 1), 1)
	resolver := startUnbound(t, "", row[1]+"\n\t"+row[2]+"\n\t"+server+"\n")
	awaitReply(t, resolver, "web.fed.example", dns.TypeA, func(m *dns.Msg) string {
		if got := summary(m); got != "NOERROR 192.0.2.1" {
			return "Unbound answers " + got
		}
		return ""
	})
}

// TestTransports asks a process over UDP, without EDNS and with it, and over TCP. What is answered is in
// the table of package plugin.
func TestTransports(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := startOwner(t, p, firstOwner()...)
	d := startCoreDNS(t, strings.ToUpper("fed.example")+strings.TrimPrefix(federationBlock(p, "fed.example", "", o.address), "fed.example"))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	const target = "192-0-2-9.addr.deep.a.b.fed.example."
	checkTable(t, d.address, "fed.example.", []tableRow{
		{"deep.a.b", "A", "NOERROR, 30 A 192.0.2.9"},
		{"deep.a.b", "SRV", "NOERROR, 30 SRV 0 100 5432 " + target + ", + " + target + " 30 IN A 192.0.2.9"},
		{"db.r1.deep.a.b", "TXT", `NOERROR, 30 TXT "txtvers=1" "id=DB.r1" "protocol=TCP"`},
		{"deep.a.b", "ANY", `NOERROR, 30 HINFO "RFC8482" ""`},
		{"deep.a.b", "AAAA MX CNAME HTTPS", noData},
		{"nope", "A NS TXT", nxDomain},
		{"", "SOA", "NOERROR, 5 SOA ns.dns.fed.example. hostmaster.fed.example. SERIAL 300 60 86400 5"},
	})
}

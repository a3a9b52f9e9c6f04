package federationplugin

import (
	"context"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// FuzzServeDNS asks servers with random catalogs random questions, and checks what
// is true of every reply.
func FuzzServeDNS(f *testing.F) {
	const udp, tcp = 0, 1
	add := func(catalog, labels, name string, qtype, qclass uint16, opcode uint8, size uint16, over uint8) {
		f.Add([]byte(catalog), []byte(labels), name, qtype, qclass, opcode, size, over)
	}
	add("\x00\x00\x03\x01\x02\x03\x04\x05\x06\x07\x08\x09", "", "web.fed.example.", dns.TypeA, dns.ClassINET, dns.OpcodeQuery, 0, udp)
	add("\x00\x00\x04\x21\x32\x43\x54\x65\x76\x87\x98\xa9", "", "V1.web.fed.EXAMPLE.", dns.TypeTXT, dns.ClassINET, dns.OpcodeQuery, 1232, udp)
	add("\x00\x01\x05\x00\x00\x02\xff\x00\x00\x00\x00", "", "fed.example.", dns.TypeSRV, dns.ClassINET, dns.OpcodeQuery, 512, tcp)
	add("\x01\x00\x05\x00\x00\x02\xc0\x01\x02\x03\x04", "\x01", "", dns.TypeSRV, dns.ClassINET, dns.OpcodeQuery, 700, udp)
	add("\x00\x00\x01", "\x02\x03\x00", "", dns.TypeSRV, dns.ClassINET, dns.OpcodeQuery, 4097, udp)
	add("\x00\x00\x01", "\x07\x06\x00", "", dns.TypeAAAA, dns.ClassINET, dns.OpcodeQuery, 4096, udp)
	add("", "", "nope.fed.example.", dns.TypeANY, dns.ClassINET, dns.OpcodeQuery, 4096, udp)
	add("\x01", "", "fed.example.", dns.TypeSOA, dns.ClassINET, dns.OpcodeNotify, 0, udp)
	add("\x01", "", "fed.example.", dns.TypeAXFR, dns.ClassINET, dns.OpcodeQuery, 0, tcp)
	add("\x01", "", "web.fed.example.", dns.TypeTXT, dns.ClassCHAOS, dns.OpcodeQuery, 0, udp)
	add("\x01", "", `a\.b\255.fed.example.`, dns.TypeTXT, dns.ClassINET, dns.OpcodeQuery, 0, udp)
	f.Fuzz(func(t *testing.T, catalog, labels []byte, name string, qtype, qclass uint16, opcode uint8, size uint16, over uint8) {
		if len(labels) > 0 {
			name = named(labels)
		}
		query := fromWire(name, qtype, qclass, int(opcode%16), size)
		if query == nil {
			return
		}
		d := &dice{catalog}
		next := &handedOn{}
		c := newChain(t, next, d.blocks(t), d.services(t)...)
		defer hostname.Close(c.hosts)
		if d.roll(4) == 0 {
			c.builder.SetStatus(0, zone.Status{Live: 1})
			c.publish()
		}
		w := &test.ResponseWriter{TCP: over%2 == tcp}
		first := c.ask(w, query.Copy())
		if next.questions > 0 {
			return // the next plugin's
		}
		verify(t, request.Request{W: w, Req: query}, first)
		text := first.String()
		for _, section := range [][]dns.RR{first.Answer, first.Ns, first.Extra} {
			for _, rr := range section {
				rr.Header().Name, rr.Header().Ttl = "changed.", 1
			}
		}
		if d := cmp.Diff(text, c.ask(w, query.Copy()).String()); d != "" {
			t.Errorf("asked again (-first +second):\n%s", d)
		}
	})
}

// named returns a name in the zone, made of labels that occur in the catalogs.
func named(labels []byte) string {
	var name strings.Builder
	for _, l := range labels {
		known := []string{"web", "v1", "_http", "_tcp", "a", "b", "addr", "192-0-2-1", "_mongodb", "db", "r1", "dns", "ns", "deep", "WEB", "*"}
		name.WriteString(known[int(l)%len(known)] + ".")
	}
	return name.String() + "fed.Example."
}

// fromWire returns the query as a server reads it, or nil when it cannot be sent.
func fromWire(name string, qtype, qclass uint16, opcode int, size uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Question[0].Qclass = qclass
	m.Opcode = opcode
	if size > 0 {
		m.SetEdns0(size, size%2 == 1)
	}
	wire, err := m.Pack()
	if err != nil || m.Unpack(wire) != nil {
		return nil
	}
	return m
}

// verify checks what is true of every reply of this plugin.
func verify(t *testing.T, state request.Request, m *dns.Msg) {
	t.Helper()
	if m == nil {
		t.Fatal("no reply, and handed to nobody")
	}
	wire, err := m.Pack()
	if err != nil {
		t.Fatalf("reply does not pack: %v\n%v", err, m)
	}
	if len(wire) > state.Size() {
		t.Errorf("reply has %d octets, client takes %d", len(wire), state.Size())
	}
	if d := cmp.Diff(state.Req.Question, m.Question); d != "" || !m.Response || m.Id != state.Req.Id || m.AuthenticatedData || m.RecursionAvailable {
		t.Errorf("reply does not belong to the query: %v\n%s", m.MsgHdr, d)
	}
	if (m.IsEdns0() != nil) != (state.Req.IsEdns0() != nil) {
		t.Errorf("OPT of the reply is %v, of the query %v", m.IsEdns0(), state.Req.IsEdns0())
	}
	answered := m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError
	negative := answered && len(m.Answer) == 0 && !m.Truncated
	switch {
	case m.Authoritative != answered:
		t.Errorf("AA is %t with %s", m.Authoritative, dns.RcodeToString[m.Rcode])
	case m.Rcode == dns.RcodeNameError && len(m.Answer) > 0, !answered && len(m.Answer)+len(m.Ns) > 0:
		t.Errorf("%s with records", dns.RcodeToString[m.Rcode])
	case negative && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA):
		t.Errorf("authority of a negative answer is %v, want one SOA", m.Ns)
	case !negative && len(m.Ns) > 0:
		t.Errorf("authority of a positive answer is %v", m.Ns)
	case m.Truncated && (len(m.Answer) == 0 || len(m.Extra) > 1 || state.Proto() == "tcp"):
		t.Errorf("truncated with %d answers and %d additional over %s", len(m.Answer), len(m.Extra), state.Proto())
	}
	want := dns.RR_Header{Name: state.QName(), Rrtype: state.QType(), Class: dns.ClassINET}
	if state.QType() == dns.TypeANY {
		want.Rrtype = dns.TypeHINFO
	}
	var seen []string
	for _, rr := range m.Answer {
		h := *rr.Header()
		want.Ttl, want.Rdlength, h.Rdlength = m.Answer[0].Header().Ttl, 0, 0
		if d := cmp.Diff(want, h); d != "" {
			t.Errorf("answer %v is not what was asked for (-want +got):\n%s", rr, d)
		}
		seen = append(seen, rr.String())
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(seen))); len(sorted) < len(seen) {
		t.Errorf("answer holds a record twice: %v", seen)
	}
	for _, rr := range m.Extra {
		switch rr := rr.(type) {
		case *dns.OPT:
			if rr != m.IsEdns0() {
				t.Errorf("a second OPT: %v", m.Extra)
			}
		case *dns.A, *dns.AAAA:
			if !dns.IsSubDomain("fed.example.", rr.Header().Name) {
				t.Errorf("additional has a record of another zone: %v", rr)
			}
		default:
			t.Errorf("additional has %v", rr)
		}
	}
}

// handedOn is the next plugin. It counts the queries of clients, and answers those of
// the server itself in one of several ways.
type handedOn struct{ questions int }

func (*handedOn) Name() string { return "next" }

func (n *handedOn) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if loop, _ := ctx.Value(dnsserver.LoopKey{}).(int); loop == 0 {
		n.questions++
		return dns.RcodeRefused, nil
	}
	h := fnv.New32()
	_, _ = h.Write([]byte(r.Question[0].Name)) // it never fails
	says := map[uint32]string{
		0: "SERVFAIL", 1: "20 A 198.51.100.7\n20 A 192.0.2.1", 2: "20 CNAME x.example.net.\n5 AAAA 2001:db8::7", 3: "drop", 4: "20 A 127.0.0.1",
	}
	e := &elsewhere{}
	if s, ok := says[h.Sum32()%6]; ok {
		e.names = map[string]string{r.Question[0].Name: s}
	}
	return e.ServeDNS(ctx, w, r)
}

var _ plugin.Handler = (*handedOn)(nil)

// dice makes choices from the bytes of the fuzzer.
type dice struct{ data []byte }

// roll returns a number below n.
func (d *dice) roll(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func pick[T any](d *dice, values ...T) T { return values[d.roll(len(values))] }

func (d *dice) blocks(t *testing.T) []corefile.Block {
	blocks := []corefile.Block{newBlock(t)}
	if d.roll(3) == 1 {
		blocks[0].Fall.SetZonesFromArgs(nil)
	}
	if d.roll(3) == 1 {
		blocks = append(blocks, newBlock(t, "web.fed.example."))
	}
	return blocks
}

func (d *dice) services(t *testing.T) []*federation.Service {
	services := make([]*federation.Service, d.roll(8))
	for i := range services {
		fqdn := pick(d, "web.fed.example", "fed.example", "v1.web.fed.example", "deep.a.b.fed.example", "a.b.fed.example", "a.fed.example")
		var endpoints []string
		for range 1 + d.roll(pick(d, 4, 4, 200)) {
			endpoints = append(endpoints, pick(d, "192.0.2.1", "192.0.2.2", "[2001:db8::1]", "[::ffff:0:1]", "gw.example.net", "gw2.example.net",
				"web.fed.example", "v1.a.fed.example", "ns.dns.fed.example", "nope.fed.example", "192-0-2-1.addr.web.fed.example")+":"+pick(d, "443", "80", "65535"))
		}
		s := newService(t, fqdn, endpoints...)
		s.Name = pick(d, "one", "two", "three", `\"`+"\x00\xff")
		s.Description = pick(d, "", "text", string(make([]byte, 300)))
		s.Tags = make([]string, d.roll(65))
		for i := range s.Tags {
			s.Tags[i] = pick(d, "a", "", `\065`, string(make([]byte, 250)))
		}
		for i := range d.roll(pick(d, 3, 3, 200)) {
			s.Instances = append(s.Instances, federation.Instance{
				ID:       pick(d, "v1", "V1", "DB.r1", "addr", "_x", "no name", "dns", "192-0-2-1.addr", "web", string(rune('a'+i%26))),
				Protocol: pick(d, federation.HTTP, federation.MONGO, federation.TCP), EndpointSelector: pick(d, nil, []string{"none"}),
				Metadata: pick(d, nil, []federation.Pair{{Key: "Port", Value: "80"}, {Key: "x=y", Value: "z"}, {Key: "zone", Value: `\"`}}),
			})
		}
		services[i] = s
	}
	return services
}

package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// tableRow is a name, relative to a zone unless it ends in a dot, with types that each get
// the same reply, as told has it.
type tableRow struct{ name, types, want string }

// The replies without answers.
const (
	noData   = "NOERROR, SOA"
	nxDomain = "NXDOMAIN, SOA"
)

// transport is a way to send a query.
type transport struct {
	name    string
	network string
	size    uint16 // of the client's buffer; 0 is no EDNS
	do      bool
	mixed   bool // the name is in mixed case
}

// transports are the ways in which every row is tested.
var transports = []transport{
	{"plain", "udp", 0, false, false},
	{"edns", "udp", 4096, false, true},
	{"tcp", "tcp", 1232, false, true},
}

// checkTable tests every row over every transport.
func checkTable(t *testing.T, address, zone string, rows []tableRow) {
	t.Helper()
	for _, row := range rows {
		name := row.name
		if !strings.HasSuffix(name, ".") {
			name = strings.TrimPrefix(name+"."+zone, ".")
		}
		for qtype := range strings.FieldsSeq(row.types) {
			for _, over := range transports {
				query := new(dns.Msg)
				query.SetQuestion(name, dns.StringToType[qtype])
				if over.mixed {
					query.Question[0].Name = mixedCase(name)
				}
				if over.size > 0 {
					query.SetEdns0(over.size, over.do)
				}
				m, err := exchangeRaw(over.network, address, query)
				if err != nil {
					t.Errorf("%s %s over %s: %v", name, qtype, over.name, err)
				} else if got := told(m); got != row.want || !m.Authoritative || m.Truncated || (m.IsEdns0() == nil) != (over.size == 0) {
					t.Errorf("%s %s over %s: %s, want %s\n%v", name, qtype, over.name, got, row.want, m)
				}
			}
		}
	}
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

// mixedCase returns the name with every other letter in upper case.
func mixedCase(name string) string {
	b := []byte(name)
	for i := range b {
		if i%2 == 0 && 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}

// exchangeRaw sends a query and returns the reply. It is an error if the question
// does not come back byte by byte, the case of its letters included.
func exchangeRaw(network, address string, query *dns.Msg) (*dns.Msg, error) {
	sent, err := query.Pack()
	if err != nil {
		return nil, err
	}
	received, err := exchangeBytes(network, address, sent)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(received); err != nil {
		return nil, fmt.Errorf("%w in %x", err, received)
	}
	const header = 12
	end := header
	for sent[end] != 0 {
		end += 1 + int(sent[end])
	}
	question := sent[header : end+1+4]
	if !bytes.HasPrefix(received[header:], question) {
		return m, fmt.Errorf("question %x came back as %x", question, received)
	}
	return m, nil
}

// exchangeBytes sends a packed query over udp or tcp and returns the packed reply.
func exchangeBytes(network, address string, sent []byte) ([]byte, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	buf := make([]byte, dns.MaxMsgSize)
	if network == "udp" {
		if _, err := conn.Write(sent); err != nil {
			return nil, err
		}
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(sent))), sent...)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	n, err := io.ReadFull(conn, buf[:binary.BigEndian.Uint16(buf)])
	return buf[:n], err
}

// nameserver is a name server elsewhere in DNS, which answers for the hosts of
// endpoints. Its reply for a name is given as text: lines of "TTL TYPE RDATA",
// or the name of an rcode. Other names do not exist.
type nameserver struct {
	address string
	names   map[string]string // replies by name
}

func startNameserver(t testing.TB, names map[string]string) *nameserver {
	t.Helper()
	n := &nameserver{address: freeAddress(t), names: names}
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // cleanups run in reverse: after the shutdowns below
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		server := &dns.Server{Addr: n.address, Net: network, Handler: n, NotifyStartedFunc: func() { close(started) }}
		running.Go(func() {
			if err := server.ListenAndServe(); err != nil {
				t.Errorf("name server: %v", err)
			}
		})
		<-started
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return n
}

// ServeDNS implements dns.Handler.
func (n *nameserver) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	name, qtype := strings.ToLower(r.Question[0].Name), r.Question[0].Qtype
	says, ok := n.names[name]
	m := new(dns.Msg)
	m.SetReply(r)
	name = r.Question[0].Name // in the case in which it was asked
	code, isCode := dns.StringToRcode[says]
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case isCode:
		m.Rcode = code
	}
	for line := range strings.Lines(says) {
		rr, err := dns.NewRR(name + " " + line)
		if err != nil {
			break // it is an rcode
		}
		if rr.Header().Rrtype == qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	_ = w.WriteMsg(m) // a client that is gone needs no reply
}

// fixtureService returns a service with endpoints as "address:port" or
// "address:port@[label]", and instances as "id PROTOCOL" or "id PROTOCOL@[selector]".
func fixtureService(t testing.TB, name, fqdn string, endpoints, instances []string) *federation.Service {
	t.Helper()
	parsed := must.Get(federation.ParseFQDN(fqdn))(t)
	s := &federation.Service{Name: name, FQDN: parsed}
	labelled := func(s string) (string, []string) {
		before, label, ok := strings.Cut(strings.TrimSuffix(s, "]"), "@[")
		if !ok {
			return before, nil
		}
		return before, []string{label}
	}
	for _, e := range endpoints {
		target, labels := labelled(e)
		host, port, err := net.SplitHostPort(target)
		must.Do(t, err)
		address := must.Get(federation.ParseAddress(host))(t)
		number := must.Get(strconv.ParseUint(port, 10, 16))(t)
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: uint16(number), Labels: labels})
	}
	for _, i := range instances {
		what, selector := labelled(i)
		at := strings.LastIndexByte(what, ' ')
		protocol, ok := federation.ParseProtocol(what[at+1:])
		if !ok {
			t.Fatalf("instance %q has no protocol", i)
		}
		s.Instances = append(s.Instances, federation.Instance{ID: what[:at], Protocol: protocol, EndpointSelector: selector})
	}
	return s
}

// webService returns a service with everything in it.
func webService(t testing.TB, zone string) *federation.Service {
	t.Helper()
	web := fixtureService(t, "web", "web."+zone,
		[]string{"192.0.2.1:8080@[eu]", "[2001:db8::1]:8443@[us]", "gw.example.net:443@[us]"},
		[]string{"v1 HTTP@[eu]", "v2 HTTPS@[none]"})
	web.Description, web.Tags, web.SANs = "Web", []string{"a", "b"}, []string{"spiffe://o1/web"}
	web.Labels = []federation.Pair{{Key: "App", Value: "x"}}
	web.Instances[0].Metadata = []federation.Pair{{Key: "HOSTNAME", Value: "web.int"}, {Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"}}
	return web
}

// firstOwner returns services of every shape.
func firstOwner(t testing.TB) []*federation.Service {
	t.Helper()
	service := func(name string, endpoints, instances []string) *federation.Service {
		fqdn := strings.TrimPrefix(name+".fed.example", ".")
		return fixtureService(t, "s-"+name, fqdn, endpoints, instances)
	}
	https := []string{"v1 HTTPS"}
	hosts := func(name string, endpoints ...string) *federation.Service {
		for i := range endpoints {
			endpoints[i] += ":443"
		}
		return service(name, endpoints, https)
	}
	numbered := func(n int) (endpoints []string) {
		for i := range n {
			endpoints = append(endpoints, fmt.Sprintf("192.0.2.%d:443", 100+i))
		}
		return endpoints
	}
	text := service("text", []string{"192.0.2.1:443"}, []string{"v1 TCP"})
	text.Description = strings.Repeat("é", 200) // 400 octets
	text.Instances[0].Metadata = textMetadata()
	return []*federation.Service{
		webService(t, "fed.example"),
		service("deep.a.b", []string{"192.0.2.9:5432"}, []string{"DB.r1 TCP"}),
		service("", []string{"192.0.2.80:443"}, []string{"Edge TLS"}),
		hosts("mixed", "192.0.2.1", "dup.example.net", "gw.example.net"), hosts("nx", "nx.example.net"), hosts("six", "gw.example.net"),
		hosts("inner", "v1.web.fed.example"), hosts("loop1", "loop2.fed.example"), hosts("loop2", "loop1.fed.example"), hosts("ula", "[fd00::1]"),
		service("ports", []string{"192.0.2.1:80", "192.0.2.1:443", "192.0.2.1:80"}, []string{"v1 HTTP", "v2 HTTPS"}),
		service("mongo", []string{"192.0.2.1:27017"}, []string{"v1 MONGO", "v2 GRPC", "v3 HTTP2"}),
		service("all", []string{"192.0.2.1:1@[a]", "192.0.2.2:2@[b]"}, []string{"v1 TCP@[a]"}),
		service("eight", numbered(8), https), service("forty", numbered(40), https),
		service("bücher", []string{"192.0.2.1:443"}, []string{"Bücher HTTP"}),
		service("ids", []string{"192.0.2.1:443"}, []string{"no name HTTP", "_x HTTP", "addr HTTP", "x.addr HTTP", "a_b HTTP", "TWICE TCP", "twice TLS"}),
		service(longName("l", 254-len("fed.example.")-1), []string{"192.0.2.1:443", "gw.example.net:443"}, []string{"v1 TCP"}),
		text,
	}
}

// longName returns a name of n characters, without a final dot, that repeats a
// label of one character.
func longName(label string, n int) string {
	return strings.Trim(strings.Repeat(strings.Repeat(label, 62)+".", n/63)+strings.Repeat(label, n%63), ".")
}

// textMetadata returns pairs that a TXT record can hold, and some that it cannot.
func textMetadata() []federation.Pair {
	pairs := []federation.Pair{
		{Key: "back", Value: `C:\dir\065x`},
		{Key: "Quote", Value: `say "hi"`},
		{Key: "nul", Value: "a\x00b"},
		{Key: "utf", Value: "grüße"},
		{Key: "b254", Value: strings.Repeat("x", 254-len("md.b254="))},
		{Key: "b255", Value: strings.Repeat("y", 255-len("md.b255="))},
		{Key: "b256", Value: strings.Repeat("z", 256-len("md.b256="))},
		{Key: "a=b", Value: "no key"},
		{Key: "with space", Value: "no key"},
		{Key: "FOLD", Value: "first"},
		{Key: "Fold", Value: "second"},
		{Key: "port", Value: "81"},
		{Key: "SNI", Value: "sni.int"},
		{Key: "empty"},
	}
	slices.SortFunc(pairs, func(a, b federation.Pair) int { return strings.Compare(a.Key, b.Key) })
	return pairs
}

// serialOf returns the serial of a zone.
func serialOf(t testing.TB, address, zone string) uint32 {
	t.Helper()
	m := mustQuery(t, address, zone, dns.TypeSOA)
	if len(m.Answer) != 1 {
		t.Fatalf("no SOA: %v", m)
	}
	return m.Answer[0].(*dns.SOA).Serial
}

// settledSerial returns the serial of a zone once it can only move with another
// change. The serial of several changes within a second moves when that is over.
func settledSerial(t testing.TB, address, zone string) uint32 {
	t.Helper()
	var serial uint32
	eventually(t, patience, func() string {
		serial = serialOf(t, address, zone)
		if now := uint32(time.Now().Unix()); int32(now-serial) < 3 {
			return fmt.Sprintf("the serial is %d at %d", serial, now)
		}
		return ""
	})
	return serial
}

// federationBlock returns a server block for a zone: the lines of extra, and a
// federation block for each owner, which is "ADDRESS" or "ADDRESS PROPERTIES". The
// properties may be several lines.
func federationBlock(p *pki, zone, extra string, owners ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:PORT {\n\tbind 127.0.0.1\n", zone)
	for line := range strings.Lines(extra) {
		b.WriteString("\t" + strings.TrimSuffix(line, "\n") + "\n")
	}
	for _, o := range owners {
		address, properties, _ := strings.Cut(o, " ")
		fmt.Fprintf(&b, "\tfederation {\n\t\towner %s\n\t\t%s\n\t\t%s\n\t}\n", address, p.tls(), properties)
	}
	b.WriteString("}\n")
	return b.String()
}

// TestTransports asks a process over UDP, without EDNS and with it, and over TCP. What is answered is in
// the table of package plugin.
func TestTransports(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", firstOwner(t)...)
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

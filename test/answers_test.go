package test

import (
	"bytes"
	gocmp "cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// want is a reply as the decision table has it.
type want struct {
	code    string
	answers []string // "TTL TYPE RDATA" in order; a TTL of "<=20" may be less
	soa     bool     // the authority section holds the SOA alone; otherwise it is empty
	extra   []string // "NAME TTL TYPE RDATA" in order; a small buffer may hold only the first of them
	ede     int      // extended error for a client with EDNS; 0 is none
	ours    bool     // authoritative
	cut     bool     // truncated (TC): only some of the answers are there
}

// found is an authoritative reply with these answers.
func found(answers ...string) want { return want{code: "NOERROR", answers: answers, ours: true} }

// with adds records of the additional section.
func (w want) with(extra ...string) want { w.extra = extra; return w }

// stale adds the extended error of a stale answer.
func (w want) stale() want { w.ede = int(dns.ExtendedErrorCodeStaleAnswer); return w }

var (
	noData   = want{code: "NOERROR", soa: true, ours: true}
	nxDomain = want{code: "NXDOMAIN", soa: true, ours: true}
	refused  = want{code: "REFUSED"}
	noHost   = want{code: "SERVFAIL", ede: int(dns.ExtendedErrorCodeNoReachableAuthority)}
	blocked  = want{code: "NOERROR", soa: true, ours: true, ede: int(dns.ExtendedErrorCodeBlocked)}
	notReady = want{code: "SERVFAIL", ede: int(dns.ExtendedErrorCodeNotReady)}
)

// tableRow is one row of the decision table, or a part of it.
type tableRow struct {
	number string // of the row in the decision table
	name   string // relative to the zone unless it ends in a dot
	types  string // each of which gets the same reply
	want
}

// transport is a way to send a query.
type transport struct {
	name    string
	network string
	size    uint16 // of the client's buffer; 0 is no EDNS
	do      bool
	mixed   bool // the name is in mixed case, with CD and without RD
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
		t.Run(row.number+" "+row.name+" "+row.types, func(t *testing.T) {
			for qtype := range strings.FieldsSeq(row.types) {
				for _, over := range transports {
					row.check(t, address, name, qtype, over)
				}
			}
		})
	}
}

// check sends one query and compares the whole reply.
func (w want) check(t *testing.T, address, name, qtype string, over transport) {
	t.Helper()
	number, ok := dns.StringToType[qtype]
	if !ok {
		n := must.Get(strconv.ParseUint(strings.TrimPrefix(qtype, "TYPE"), 10, 16))(t)
		number = uint16(n)
	}
	query := new(dns.Msg)
	query.SetQuestion(name, number)
	query.CheckingDisabled = over.mixed
	query.RecursionDesired = !over.mixed
	if over.mixed {
		query.Question[0].Name = mixedCase(name)
	}
	if over.size > 0 {
		query.SetEdns0(over.size, over.do)
	}
	m, err := exchangeRaw(over.network, address, query)
	if err != nil {
		t.Errorf("%s over %s: %v", qtype, over.name, err)
		return
	}
	if wrong := w.compare(query, m); len(wrong) > 0 {
		t.Errorf("%s over %s: %s\nreply is\n%v", qtype, over.name, strings.Join(wrong, "\n"), m)
	}
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

// compare returns what is wrong with a reply, and nothing where it is as wanted.
func (w want) compare(query, m *dns.Msg) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	code, _ := strings.CutPrefix(dns.RcodeToString[m.Rcode], "RCODE")
	flags := func(m *dns.MsgHdr) string {
		return fmt.Sprintf("qr=%t aa=%t tc=%t rd=%t ra=%t ad=%t cd=%t z=%t",
			m.Response, m.Authoritative, m.Truncated, m.RecursionDesired, m.RecursionAvailable, m.AuthenticatedData, m.CheckingDisabled, m.Zero)
	}
	header := dns.MsgHdr{
		Response: true, Authoritative: w.ours, Truncated: w.cut,
		RecursionDesired: query.RecursionDesired, CheckingDisabled: query.CheckingDisabled,
	}
	if code != w.code || flags(&m.MsgHdr) != flags(&header) {
		complain("header is %s %s, want %s %s", code, flags(&m.MsgHdr), w.code, flags(&header))
	}
	size := 512
	switch opt := query.IsEdns0(); {
	case opt == nil && m.IsEdns0() != nil:
		complain("OPT for a client that sent none")
	case opt != nil && m.IsEdns0() == nil:
		complain("no OPT for a client that sent one")
	case opt != nil:
		size = int(opt.UDPSize())
		if m.IsEdns0().Do() != opt.Do() || m.IsEdns0().Version() != 0 {
			complain("OPT is %v", m.IsEdns0())
		}
		if got := extendedError(m); got != w.ede && (got != -1 || w.ede != 0) {
			complain("extended error is %d, want %d", got, w.ede)
		}
	}
	complaints(complain, "answer", w.answers, m.Answer, query.Question[0].Name, w.cut, true)
	for _, rr := range m.Answer {
		if rr.Header().Name != query.Question[0].Name {
			complain("answer has the name %s", rr.Header().Name)
		}
	}
	switch {
	case !w.soa && len(m.Ns) > 0:
		complain("authority is %v, want nothing", m.Ns)
	case w.soa && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA):
		complain("authority is %v, want one SOA", m.Ns)
	case w.soa:
		soa := m.Ns[0].(*dns.SOA)
		if soa.Hdr.Ttl != soa.Minttl || soa.Hdr.Ttl != 5 {
			complain("SOA has the TTL %d and the minimum %d, want 5", soa.Hdr.Ttl, soa.Minttl)
		}
	}
	extra := slices.DeleteFunc(slices.Clone(m.Extra), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	expected := w.extra
	if size == 512 {
		expected = expected[:min(len(expected), len(extra))] // each record is an RRset, which is there as a whole or not at all
	}
	complaints(complain, "additional", expected, extra, "", false, false)
	return wrong
}

// complaints compares a section with text, and calls complain for each difference.
// With an empty name the text begins with the names of the records. Of a section
// that was cut only the first records need be there. With oneTTL all records must
// have the same TTL.
func complaints(complain func(string, ...any), section string, expected []string, got []dns.RR, name string, cut, oneTTL bool) {
	var lines []string
	for i, rr := range got {
		h := rr.Header()
		line := strings.ReplaceAll(strings.TrimPrefix(rr.String(), h.String()), "\t", " ")
		if soa, ok := rr.(*dns.SOA); ok {
			line = strings.Replace(line, strconv.Itoa(int(soa.Serial)), "SERIAL", 1)
		}
		ttl := strconv.Itoa(int(h.Ttl))
		if i < len(expected) {
			fields := strings.Fields(expected[i])
			if name == "" {
				fields = fields[1:]
			}
			if most, ok := strings.CutPrefix(fields[0], "<="); ok {
				if n, err := strconv.Atoi(most); err == nil && h.Ttl > 0 && int(h.Ttl) <= n {
					ttl = fields[0]
				}
			}
		}
		line = ttl + " " + dns.TypeToString[h.Rrtype] + " " + line
		if name == "" {
			line = h.Name + " " + line
		}
		lines = append(lines, line)
		if oneTTL && h.Ttl != got[0].Header().Ttl {
			complain("%s has TTLs %d and %d in one RRset", section, h.Ttl, got[0].Header().Ttl)
		}
		if h.Class != dns.ClassINET {
			complain("%s has the class %d", section, h.Class)
		}
	}
	if cut && len(lines) > 0 && len(lines) < len(expected) {
		expected = expected[:len(lines)]
	}
	if d := cmp.Diff(slices.Clip(append([]string{}, expected...)), append([]string{}, lines...)); d != "" {
		complain("%s (-want +got):\n%s", section, d)
	}
}

// nameserver is a name server elsewhere in DNS, which answers for the hosts of
// endpoints. Its reply for a name is given as text: lines of "TTL TYPE RDATA", in
// which a CNAME gives the following lines the name that it points to, the name of
// an rcode, or "hang" for no reply at all. Other names do not exist.
type nameserver struct {
	address string
	names   map[string]string // replies by name; read-only

	mu    sync.Mutex
	asked map[string]int // by name and type; guarded by mu
}

func startNameserver(t testing.TB, names map[string]string) *nameserver {
	t.Helper()
	n := &nameserver{address: freeAddress(t), names: names, asked: make(map[string]int)}
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
	n.mu.Lock()
	n.asked[name+" "+dns.TypeToString[qtype]]++
	n.mu.Unlock()
	says, ok := n.names[name]
	m := new(dns.Msg)
	m.SetReply(r)
	name = r.Question[0].Name // in the case in which it was asked
	code, isCode := dns.StringToRcode[says]
	switch {
	case says == "hang":
		return
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
		if cname, ok := rr.(*dns.CNAME); ok {
			name = cname.Target
		} else if rr.Header().Rrtype != qtype {
			continue
		}
		m.Answer = append(m.Answer, rr)
	}
	_ = w.WriteMsg(m) // a client that is gone needs no reply
}

// fixtureService returns a service from the notation of the decision table:
// endpoints as "address:port" or "address:port@[label]", instances as
// "id PROTOCOL" or "id PROTOCOL@[selector]".
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

// webService returns the service W of the decision table.
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

// firstOwner returns the services of the owner o1 of the decision table, and more
// that some rows need.
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
		hosts("chain", "chain.example.net"), hosts("mixed", "192.0.2.1", "dup.example.net", "gw.example.net"),
		hosts("nx", "nx.example.net"), hosts("six", "gw.example.net"), hosts("slow", "slow.example.net"),
		hosts("partial", "192.0.2.1", "slow.example.net"), hosts("failing", "servfail.example.net"),
		hosts("refused", "refused.example.net"), hosts("dropped", "gw.dropped.net"), hosts("long", "long.example.net"),
		hosts("meta", "meta.example.net"), hosts("inner", "v1.web.fed.example"), hosts("gone", "nothing.fed.example"),
		hosts("loop1", "loop2.fed.example"), hosts("loop2", "loop1.fed.example"), hosts("self", "self.fed.example", "192.0.2.1"),
		hosts("back", "gw.back.example"), hosts("old-too", "old.fed.example", "192.0.2.1"), hosts("mapped", "[::ffff:192.0.2.44]"), hosts("ula", "[fd00::1]"),
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

// hugeService returns a service with as many endpoints and instances as package
// wire accepts. Its transfer would be two million records.
func hugeService(t testing.TB) *federation.Service {
	t.Helper()
	var endpoints, instances []string
	for i := range 1000 {
		endpoints = append(endpoints, fmt.Sprintf("[2001:db8::%x]:443", i))
		instances = append(instances, fmt.Sprintf("i%d HTTPS", i))
	}
	huge := fixtureService(t, "huge", longName("h", 150)+".fed.example", endpoints, instances)
	for i := range huge.Instances {
		huge.Instances[i].Description = strings.Repeat("d", 200)
	}
	return huge
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

// TestAnswers has the rows of the decision table that one server answers, with the
// fixture of the table: one owner that is live and one that is lost.
func TestAnswers(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	n := startNameserver(t, map[string]string{
		"gw.example.net.":       "20 A 198.51.100.7",
		"dup.example.net.":      "60 A 192.0.2.1",
		"chain.example.net.":    "15 CNAME a.example.net.\n40 CNAME b.example.net.\n25 A 198.51.100.8\n25 A 198.51.100.7",
		"slow.example.net.":     "hang",
		"servfail.example.net.": "SERVFAIL",
		"refused.example.net.":  "REFUSED",
		"meta.example.net.":     "20 A 169.254.169.254",
		"long.example.net.":     cnameChain(9),
		"gw.dropped.net.":       "20 A 198.51.100.7",
	})
	o1 := startOwner(t, p.owner, "", append(firstOwner(t), hugeService(t))...)
	o2 := startOwner(t, p.owner, "", fixtureService(t, "old", "old.fed.example", []string{"203.0.113.5:443"}, []string{"i1 MTLS"}))
	o3 := startOwner(t, p.owner, "", webService(t, "ten.example"))
	back := filepath.Join(t.TempDir(), "back.example")
	writeFile(t, back, "@ 60 IN SOA ns hostmaster 1 60 60 60 60\n@ 60 IN NS ns\ngw 20 IN CNAME back.fed.example.\n")
	d := startCoreDNS(t, fmt.Sprintf(`Fed.Example:PORT {
	bind 127.0.0.1
	federation {
		owner %[1]s
		%[4]s
	}
	federation {
		owner %[2]s
		%[4]s
		retention 10m
	}
}
ten.example:PORT {
	bind 127.0.0.1
	federation {
		owner %[3]s
		%[4]s
		retention 10s
	}
}
org:PORT {
	bind 127.0.0.1
	federation fed.org {
		owner %[1]s
		%[4]s
	}
}
dropped.net:PORT {
	bind 127.0.0.1
	acl {
		drop type * net *
	}
	forward . %[5]s
}
back.example:PORT {
	bind 127.0.0.1
	file %[6]s
}
.:PORT {
	bind 127.0.0.1
	forward example.net %[5]s
}`, o1.address, o2.address, o3.address, p.tls(), n.address, back))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "nope.ten.example", dns.TypeA, "NXDOMAIN")
	o2.stop()
	d.awaitStale(t, "old.fed.example")
	checkTable(t, d.address, "fed.example.", lost(answerRows()))
	checkTable(t, d.address, "fed.example.", lost(issueRows()))
	checkTable(t, d.address, "ten.example.", []tableRow{
		{"7.5", "v1.web", "A", found("10 A 192.0.2.1")},
		{"7.5", "web", "A", found("<=10 A 192.0.2.1", "<=10 A 198.51.100.7")},
	})
	checkTable(t, d.address, "org.", []tableRow{{"coredns#6855 no next plugin", "other", "A SOA", refused}})
	t.Run("messages", func(t *testing.T) { checkMessages(t, d.address) })
	t.Run("sizes", func(t *testing.T) { checkSizes(t, d.address) })
}

// lost returns the rows for a zone with a lost owner: negative answers have the
// extended error of row 7.7.
func lost(rows []tableRow) []tableRow {
	for i := range rows {
		if w := &rows[i].want; w.soa && (w.ede == 0 || w.ede == int(dns.ExtendedErrorCodeStaleAnswer)) {
			w.ede = int(dns.ExtendedErrorCodeStaleNXDOMAINAnswer)
		}
	}
	return rows
}

// answerRows returns the rows of sections 1 to 8 about fed.example.
func answerRows() []tableRow {
	const (
		v4     = "192-0-2-1.addr.web.fed.example."
		v6     = "2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example."
		v4glue = v4 + " 30 A 192.0.2.1"
		v6glue = v6 + " 30 AAAA 2001:db8::1"
		gwGlue = "gw.example.net. <=20 A 198.51.100.7"
		others = "CNAME MX CAA NS SOA DS HTTPS SVCB HINFO PTR NAPTR TLSA DNSKEY NSEC RRSIG TYPE65000"
		every  = "A AAAA SRV TXT ANY " + others
		v1TXT  = `30 TXT "txtvers=1" "id=v1" "protocol=HTTP" "hostname=web.int" "port=80" "md.zone=eu"`
		v2TXT  = `30 TXT "txtvers=1" "id=v2" "protocol=HTTPS"`
		webTXT = `30 TXT "txtvers=1" "name=web" "desc=Web" "tag=a" "tag2=b" "label.app=x" "san=spiffe://o1/web"`
	)
	hinfo := found(`30 HINFO "RFC8482" ""`)
	all := found("30 SRV 0 100 8080 "+v4, "30 SRV 0 100 8443 "+v6, "30 SRV 0 100 443 gw.example.net.").with(v4glue, v6glue, gwGlue)
	http := found("30 SRV 0 100 8080 " + v4).with(v4glue)
	endpoint := func(port, address, name string) want {
		target := strings.ReplaceAll(address, ".", "-") + ".addr." + name + ".fed.example."
		return found("30 SRV 0 100 " + port + " " + target).with(target + " 30 A " + address)
	}
	long := longName("l", 254-len("fed.example.")-1)
	return []tableRow{
		// 1. A and AAAA
		{"1.1", "web", others, noData},
		{"1.2", "web", "A", found("<=20 A 192.0.2.1", "<=20 A 198.51.100.7")},
		{"1.2", "web", "AAAA", found("30 AAAA 2001:db8::1")},
		{"1.2", "mixed", "A", found("<=20 A 192.0.2.1", "<=20 A 198.51.100.7")},
		{"1.3", "chain", "A", found("<=15 A 198.51.100.7", "<=15 A 198.51.100.8")},
		{"1.4", "v1.web", "A", found("30 A 192.0.2.1")},
		{"1.4", "v1.web", "AAAA", noData},
		{"1.4", "v2.web", "A", found("<=20 A 192.0.2.1", "<=20 A 198.51.100.7")},
		{"1.4", "v2.web", "AAAA", found("30 AAAA 2001:db8::1")},
		{"1.4", "all", "A", found("30 A 192.0.2.1", "30 A 192.0.2.2")},
		{"1.4", "v1.all", "A", found("30 A 192.0.2.1")},
		{"1.5", "inner", "A", found("30 A 192.0.2.1")},
		{"1.5", "gone", "A AAAA", noData},
		{"1.5", "loop1", "A AAAA", noData},
		{"1.5", "loop2", "A AAAA", noData},
		{"1.5", "self", "A", found("30 A 192.0.2.1")},
		{"1.7", "dropped", "A AAAA", noHost},
		{"1.7", "long", "A", noHost},
		{"1.8", "slow", "A", noHost},
		{"1.8", "partial", "A", found("5 A 192.0.2.1")},
		{"1.8", "failing", "A AAAA", noHost},
		{"1.8", "refused", "A", noHost},
		{"1.8", "nx", "A AAAA", noData},
		{"1.8", "failing", "SRV", noHost},
		{"1.8", "partial", "SRV", found("5 SRV 0 100 443 192-0-2-1.addr.partial.fed.example.").with("192-0-2-1.addr.partial.fed.example. 5 A 192.0.2.1")},
		{"1.9", "mapped", "A", found("30 A 192.0.2.44")},
		{"1.9", "mapped", "AAAA", noData},
		{"1.9 and 10.4", "meta", "A", blocked},
		{"1.10", "six", "AAAA", noData},
		{"1.10", "", "AAAA", noData},
		{"1", "", "A", found("30 A 192.0.2.80")},

		// 2. SRV
		{"2.1", "web", "SRV", all},
		{"2.1", "v1.web", "SRV", http},
		{"2.1", "v2.web", "SRV", all},
		{"2.1", "_http._tcp.web", "SRV", http},
		{"2.1", "_https._tcp.web", "SRV", all},
		{"2.1", "_http._tcp.v1.web", "SRV", http},
		{"2.1", "_mongo._tcp.mongo", "SRV", endpoint("27017", "192.0.2.1", "mongo")},
		{"2.1", "_mongodb._tcp.mongo", "SRV", endpoint("27017", "192.0.2.1", "mongo")},
		{"2.1", "_mongodb._tcp.v1.mongo", "SRV", endpoint("27017", "192.0.2.1", "mongo")},
		{"2.1", "_grpc._tcp.mongo", "SRV", endpoint("27017", "192.0.2.1", "mongo")},
		{"2.1", "_http2._tcp.mongo", "SRV", endpoint("27017", "192.0.2.1", "mongo")},
		{"2.1", "_tcp._tcp.deep.a.b", "SRV", endpoint("5432", "192.0.2.9", "deep.a.b")},
		{"2.1", "_tcp._tcp.db.r1.deep.a.b", "SRV", endpoint("5432", "192.0.2.9", "deep.a.b")},
		{"2.1", "_mtls._tcp.old", "SRV", endpoint("443", "203.0.113.5", "old").stale()},
		{"2.2", "_grpc._tcp.web", every, nxDomain},
		{"2.2", "_https._tcp.v1.web", every, nxDomain},
		{"2.2", "_mongodb._tcp.web", every, nxDomain},
		{"2.2", "_udp.web", every, nxDomain},
		{"2.2", "_http._udp.web", every, nxDomain},
		{"2.2", "_tcp.web", every, noData},
		{"2.2", "_tcp.v1.web", every, noData},
		{"2.2", "_http._tcp.web", "A AAAA TXT " + others, noData},
		{"2.3", "192-0-2-1.addr.web", "A", found("30 A 192.0.2.1")},
		{"2.3", "192-0-2-1.addr.web", "AAAA SRV TXT " + others, noData},
		{"2.3", "2001-0db8-0000-0000-0000-0000-0000-0001.addr.web", "AAAA", found("30 AAAA 2001:db8::1")},
		{"2.3", "2001-db8--1.addr.web", every, nxDomain},
		{"2.3", "192-0-2-2.addr.web", every, nxDomain},
		{"2.3", "192-0-2-1.addr.v1.web", every, nxDomain},
		{"2.3", "x.192-0-2-1.addr.web", every, nxDomain},
		{"2.3", "addr.web", every, noData},
		{"2.3", "addr.six", every, nxDomain}, // it has no IP address
		{"2.3", "ula", "SRV", found("30 SRV 0 100 443 fd00-0000-0000-0000-0000-0000-0000-0001.addr.ula.fed.example.").
			with("fd00-0000-0000-0000-0000-0000-0000-0001.addr.ula.fed.example. 30 AAAA fd00::1")},
		{"2.4", "chain", "SRV", found("30 SRV 0 100 443 chain.example.net.")},
		{"2.4 and 2.9", "inner", "SRV", found("30 SRV 0 100 443 v1.web.fed.example.").with("v1.web.fed.example. 30 A 192.0.2.1")},
		{"2.9", "loop1", "SRV", found("30 SRV 0 100 443 loop2.fed.example.")},
		{"2.9", "gone", "SRV", found("30 SRV 0 100 443 nothing.fed.example.")},
		{"2.8", "ports", "SRV", found("30 SRV 0 100 80 192-0-2-1.addr.ports.fed.example.", "30 SRV 0 100 443 192-0-2-1.addr.ports.fed.example.").
			with("192-0-2-1.addr.ports.fed.example. 30 A 192.0.2.1")},
		{"2.8", "ports", "A", found("30 A 192.0.2.1")},

		// 3. TXT
		{"3.1", "v1.web", "TXT", found(v1TXT)},
		{"3.1", "v2.web", "TXT", found(v2TXT)},
		{"3.2", "web", "TXT", found(webTXT, v1TXT, v2TXT)},
		{"3.2", "deep.a.b", "TXT", found(`30 TXT "txtvers=1" "name=s-deep.a.b"`, `30 TXT "txtvers=1" "id=DB.r1" "protocol=TCP"`)},
		{"3.2", "", "TXT", found(`30 TXT "txtvers=1" "name=s-"`, `30 TXT "txtvers=1" "id=Edge" "protocol=TLS"`)},

		// 5. The zone
		{"5.1", "", "SOA", found("5 SOA ns.dns.fed.example. hostmaster.fed.example. SERIAL 300 60 86400 5")},
		{"5.1", "", "NS", found("5 NS ns.dns.fed.example.")},
		{"5.1", "ns.dns", "A AAAA TXT SRV " + others, noData}, // the server is bound to loopback only
		{"5.1", "dns", every, noData},
		{"5.1", "x.dns", every, nxDomain},
		{"5.1", "x.ns.dns", every, nxDomain},
		{"5.1", "", "MX DS DNSKEY CNAME HTTPS HINFO CAA", noData},
		{"5.5", "nope", every, nxDomain},
		{"5.5", "nope.nope", every, nxDomain},
		{"5.5", "b", every, noData},
		{"5.5", "a.b", every, noData},
		{"5.5", "x.b", every, nxDomain},
		{"5.5", "x.deep.a.b", every, nxDomain},
		{"5.5", "x.v1.web", every, nxDomain},
		{"5.6", "*.web", every, nxDomain},
		{"5.6", "*", every, nxDomain},
		{"5.7", "web", "ANY", hinfo},
		{"5.7", "v1.web", "ANY", hinfo},
		{"5.7", "_http._tcp.web", "ANY", hinfo},
		{"5.7", "", "ANY", hinfo},
		{"5.10", "DEEP.a.B", "A", found("30 A 192.0.2.9")},
		{"5.10", "DB.R1.DEEP.a.B.fed.EXAMPLE.", "A", found("30 A 192.0.2.9")},
		{"5.11", "xn--bcher-kva", "A", found("30 A 192.0.2.1")},
		{"5.11", `a\.b.web`, every, nxDomain},
		{"5.11", `\255.web`, every, nxDomain},
		{"5.11", `b\195\188cher`, every, nxDomain},
		{"5.12", long, "A", found("<=20 A 192.0.2.1", "<=20 A 198.51.100.7")},
		{"5.13", "r1.deep.a.b", every, noData},
		{"5.13", "db.r1.deep.a.b", "A", found("30 A 192.0.2.9")},
		{"5.13", "db.deep.a.b", every, nxDomain},
		{"5.13", "edge", "A", found("30 A 192.0.2.80")},
		{"5.13", "_tls._tcp", "SRV", found("30 SRV 0 100 443 192-0-2-80.addr.fed.example.").with("192-0-2-80.addr.fed.example. 30 A 192.0.2.80")},
		{"5.13", `no\032name.ids`, every, nxDomain},
		{"5.13", "_x.ids", every, nxDomain},
		{"5.13", "x.addr.ids", every, nxDomain},
		{"5.13", "addr.ids", "A", found("30 A 192.0.2.1")},
		{"5.13", "a_b.ids", "A", found("30 A 192.0.2.1")},
		{"5.13", "_http._tcp.ids", "SRV", endpoint("443", "192.0.2.1", "ids")},
		{"5.13", "xn--bcher-kva.xn--bcher-kva", "TXT", found(`30 TXT "txtvers=1" "id=B\195\188cher" "protocol=HTTP"`)},
		{"5.14", "twice.ids", "TXT", found(`30 TXT "txtvers=1" "id=TWICE" "protocol=TCP"`)},
		{"5.14", "_tls._tcp.twice.ids", every, nxDomain},
		{"5.15", long, "SRV", found("30 SRV 0 100 443 gw.example.net.").with(gwGlue)},

		// 7. Stale
		{"7.6", "old", "A", found("30 A 203.0.113.5").stale()},
		{"7.6", "i1.old", "A", found("30 A 203.0.113.5").stale()},
		{"7.6", "old", "TXT", found(`30 TXT "txtvers=1" "name=old"`, `30 TXT "txtvers=1" "id=i1" "protocol=MTLS"`).stale()},
		{"7.9", "old", "AAAA MX", noData.stale()},
		{"7.9", "old-too", "A", found("30 A 192.0.2.1", "30 A 203.0.113.5").stale()},

		// 8. What does not exist
		{"8.12", "1.2.0.192.in-addr.arpa", "PTR", nxDomain},
		{"8.13", "_services._dns-sd._udp", every, nxDomain},
		{"8.6", "", "AXFR", refused},
	}
}

// issueRows returns rows for bugs that CoreDNS's own plugins had, with the numbers
// of their issues.
func issueRows() []tableRow {
	return []tableRow{
		{"coredns#5283 several hosts", "mixed", "A", found("<=20 A 192.0.2.1", "<=20 A 198.51.100.7")},
		{"coredns#5283 text beside a host", "nx", "TXT", found(`30 TXT "txtvers=1" "name=s-nx"`, `30 TXT "txtvers=1" "id=v1" "protocol=HTTPS"`)},
		{"coredns#2849", "mixed", "CNAME", noData},
		{"coredns#1228", "a.b", "A AAAA NS SOA TXT", noData},
		{"coredns#3118", "nope", "NS SRV MX", nxDomain},
		{"coredns#5736", "nope", "TXT", nxDomain},
		{"coredns#1814", "nx", "A AAAA", noData},
		{"coredns#3861 and #1692", "", "AAAA MX", noData},
		{"coredns#3861 and #1692", "", "A", found("30 A 192.0.2.80")},
		{"coredns#659", "", "NS", found("5 NS ns.dns.fed.example.")},
		{"coredns#7430", "ula", "SRV", found("30 SRV 0 100 443 fd00-0000-0000-0000-0000-0000-0000-0001.addr.ula.fed.example.").
			with("fd00-0000-0000-0000-0000-0000-0000-0001.addr.ula.fed.example. 30 AAAA fd00::1")},
		{"coredns#8518", "dropped", "A", noHost},
		{"coredns#8570", "back", "A AAAA", noHost},
		{"coredns#6088", "gone", "A", noData},
		{"coredns#7237", "_HTTP._tcp.Web", "SRV", found("30 SRV 0 100 8080 192-0-2-1.addr.web.fed.example.").
			with("192-0-2-1.addr.web.fed.example. 30 A 192.0.2.1")},
		{"coredns#6624 zone in upper case", "v1.web", "A", found("30 A 192.0.2.1")}, // the Corefile says Fed.Example
	}
}

// TestTXT has the rows of section 3 about strings that are long or need escapes.
func TestTXT(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", firstOwner(t)...)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	ask := func(name string) []dns.RR {
		query := new(dns.Msg)
		query.SetQuestion(name, dns.TypeTXT)
		m := must.Get(exchangeRaw("tcp", d.address, query))(t)
		return m.Answer
	}
	t.Run("3.3 to 3.5 strings of an instance", func(t *testing.T) {
		want := []string{
			"txtvers=1", "id=v1", "protocol=TCP", "sni=sni.int", "port=81",
			"md.b254=" + strings.Repeat("x", 246), "md.b255=" + strings.Repeat("y", 247), `md.back=C:\\dir\\065x`, "md.fold=first",
			`md.nul=a\000b`, `md.quote=say \"hi\"`, `md.utf=gr\195\188\195\159e`,
		}
		got := ask("v1.text.fed.example.")
		if len(got) != 1 {
			t.Fatalf("answer is %v", got)
		}
		if d := cmp.Diff(want, got[0].(*dns.TXT).Txt); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
	t.Run("3.4 a description that is too long", func(t *testing.T) {
		got := ask("text.fed.example.")
		if len(got) != 2 {
			t.Fatalf("answer is %v", got)
		}
		want := []string{"txtvers=1", "name=s-text", "desc=" + strings.Repeat(`\195\169`, 125)} // cut between runes
		if d := cmp.Diff(want, got[0].(*dns.TXT).Txt); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
}

// checkMessages has the rows of section 5 about messages other than plain queries.
func checkMessages(t *testing.T, address string) {
	tests := []struct {
		number, name string
		change       func(*dns.Msg)
		want         string // the code, and " aa" where that flag is set
	}{
		{"5.8 another class", "web.fed.example.", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, "REFUSED"},
		{"5.8 any class", "web.fed.example.", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, "REFUSED"},
		{"5.9 NOTIFY", "fed.example.", func(m *dns.Msg) { m.SetNotify("fed.example.") }, "NOTIMP"},
		{"5.9 UPDATE", "fed.example.", func(m *dns.Msg) { m.SetUpdate("fed.example.") }, "NOTIMP"},
		{"5 EDNS version 1", "web.fed.example.", func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, "BADSIG"},
		{"5 two questions", "web.fed.example.", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, "FORMERR"},
		{"5 no question", "web.fed.example.", func(m *dns.Msg) { m.Question = nil }, "FORMERR"},
		{"5 unknown option", "v1.web.fed.example.", func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}}
		}, "NOERROR aa"},
	}
	for _, tt := range tests {
		t.Run(tt.number, func(t *testing.T) {
			query := new(dns.Msg)
			query.SetQuestion(tt.name, dns.TypeA)
			tt.change(query)
			sent := must.Get(query.Pack())(t)
			received := must.Get(exchangeBytes("udp", address, sent))(t)
			m := new(dns.Msg)
			must.Do(t, m.Unpack(received))
			got := dns.RcodeToString[m.Rcode]
			if m.Authoritative {
				got += " aa"
			}
			if got != tt.want || len(m.Ns) > 0 {
				t.Errorf("reply is %s, want %s:\n%v", got, tt.want, m)
			}
			if opt := m.IsEdns0(); opt != nil && len(opt.Option) > 0 {
				t.Errorf("options are %v", opt.Option)
			}
		})
	}
}

// checkSizes has the rows of sections 2 and 7 about large answers.
func checkSizes(t *testing.T, address string) {
	tests := []struct {
		number  string
		name    string
		qtype   uint16
		network string
		size    uint16 // 0: no EDNS
		do      bool
		answers int // -1: some, with TC
		extra   int // -1: some
	}{
		{"2.9 eight endpoints in 512 octets", "eight", dns.TypeSRV, "udp", 0, false, 8, -1},
		{"2.9 forty endpoints in 512 octets", "forty", dns.TypeSRV, "udp", 0, false, -1, 0},
		{"2.9 forty endpoints in 512 octets with EDNS", "forty", dns.TypeSRV, "udp", 512, false, -1, 0},
		{"2.9 a buffer below 512 octets is 512", "eight", dns.TypeSRV, "udp", 100, false, 8, -1},
		{"7.2 forty endpoints in 1232 octets", "forty", dns.TypeSRV, "udp", 1232, false, -1, 0},
		{"2.9 forty endpoints in 2300 octets", "forty", dns.TypeSRV, "udp", 2300, false, 40, -1},
		{"2.9 forty endpoints in 4096 octets", "forty", dns.TypeSRV, "udp", 4096, false, 40, 40},
		{"2.9 with DO", "forty", dns.TypeSRV, "udp", 4096, true, 40, 0},
		{"2.9 with DO over TCP", "forty", dns.TypeSRV, "tcp", 4096, true, 40, 40},
		{"7.2 over TCP", "forty", dns.TypeSRV, "tcp", 0, false, 40, 40},
		{"eight addresses in 512 octets", "eight", dns.TypeA, "udp", 0, false, 8, 0},
		{"forty addresses in 512 octets", "forty", dns.TypeA, "udp", 0, false, -1, 0},
		{"forty addresses in the 686 octets that they need", "forty", dns.TypeA, "udp", 12 + 23 + 40*16 + 11, false, 40, 0},
	}
	t.Run("7.3 more than a message holds", func(t *testing.T) {
		for qtype, most := range map[uint16]int{dns.TypeAAAA: 1000, dns.TypeSRV: 999, dns.TypeTXT: 999} {
			query := new(dns.Msg)
			query.SetQuestion(longName("h", 150)+".fed.example.", qtype).SetEdns0(4096, true)
			m := must.Get(exchangeRaw("tcp", address, query))(t)
			if m.Rcode != dns.RcodeSuccess || m.Truncated || len(m.Answer) < 200 || len(m.Answer) > most {
				t.Errorf("%s over TCP: %d answers, want at most %d; %v", dns.TypeToString[qtype], len(m.Answer), most, m.MsgHdr)
			}
		}
	})
	for _, tt := range tests {
		t.Run(tt.number, func(t *testing.T) {
			query := new(dns.Msg)
			query.SetQuestion(tt.name+".fed.example.", tt.qtype)
			if tt.size > 0 {
				query.SetEdns0(tt.size, tt.do)
			}
			m := must.Get(exchangeRaw(tt.network, address, query))(t)
			extra := 0
			for _, rr := range m.Extra {
				if rr.Header().Rrtype == dns.TypeA {
					extra++
				}
			}
			some := func(got, want, all int) bool { return got == want || want == -1 && 0 < got && got < all }
			if m.Truncated != (tt.answers == -1) || !some(len(m.Answer), tt.answers, 40) || !some(extra, tt.extra, 40) {
				t.Errorf("%d answers, %d additional, TC %t; want %d and %d", len(m.Answer), extra, m.Truncated, tt.answers, tt.extra)
			}
		})
	}
}

// cnameChain returns n CNAME records and an address, in the form of nameserver.
func cnameChain(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "20 CNAME c%d.example.net.\n", i)
	}
	lines.WriteString("20 A 198.51.100.7")
	return lines.String()
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

// TestConflicts has the rows of section 6: names that two services claim, of one
// owner or of two, of which the first in the Corefile wins.
func TestConflicts(t *testing.T) {
	p := newPKI(t)
	simple := func(name, fqdn, address string) *federation.Service {
		return fixtureService(t, name, fqdn, []string{address + ":443"}, []string{"v1 HTTPS"})
	}
	o1, o2 := startOwner(t, p.owner, ""), startOwner(t, p.owner, "")
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o1.address, o2.address)+federationBlock(p, "sub.fed.example", "", o2.address))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	await := func(name, want string) {
		t.Helper()
		d.awaitAnswer(t, name, dns.TypeA, want)
	}
	t.Run("6 one fqdn of two owners", func(t *testing.T) {
		dup1, dup2 := simple("dup", "dup.fed.example", "10.0.0.1"), simple("other", "dup.fed.example", "10.0.0.2")
		mustUpsert(t, o2, dup2)
		await("dup.fed.example", "NOERROR 10.0.0.2")
		mustUpsert(t, o1, dup1)
		await("dup.fed.example", "NOERROR 10.0.0.1")
		await("10-0-0-2.addr.dup.fed.example", "NXDOMAIN")
		o1.Delete("dup")
		await("dup.fed.example", "NOERROR 10.0.0.2")
		mustUpsert(t, o1, dup1)
		await("dup.fed.example", "NOERROR 10.0.0.1")
		o2.Delete("other")
		mustUpsert(t, o2, dup2)
		mustUpsert(t, o2, simple("seen", "seen.fed.example", "10.0.0.9")) // once it is seen, so is what came before
		await("seen.fed.example", "NOERROR 10.0.0.9")
		await("dup.fed.example", "NOERROR 10.0.0.1")
	})
	t.Run("6 one fqdn of one owner", func(t *testing.T) {
		mustUpsert(t, o1, simple("b", "same.fed.example", "10.0.0.2"))
		await("same.fed.example", "NOERROR 10.0.0.2")
		mustUpsert(t, o1, simple("a", "same.fed.example", "10.0.0.1"))
		await("same.fed.example", "NOERROR 10.0.0.1")
		o1.Delete("a")
		await("same.fed.example", "NOERROR 10.0.0.2")
	})
	t.Run("6 a service at the name of an instance", func(t *testing.T) {
		mustUpsert(t, o1, webService(t, "fed.example"))
		await("v1.web.fed.example", "NOERROR 192.0.2.1")
		mustUpsert(t, o1, simple("x", "v1.web.fed.example", "192.0.2.77"))
		await("v1.web.fed.example", "NOERROR 192.0.2.77")
		// The service takes the name of the instance. Nothing else of web changes.
		await("v1.v1.web.fed.example", "NOERROR 192.0.2.77")
		web := mustQuery(t, d.address, "web.fed.example", dns.TypeSRV)
		if len(web.Answer) != 2 { // its third endpoint is a host, and nobody here knows its addresses
			t.Errorf("web has %v", web.Answer)
		}
		o1.Delete("x")
		await("v1.web.fed.example", "NOERROR 192.0.2.1")
	})
	t.Run("6 a service of a later owner at the name of an instance", func(t *testing.T) {
		mustUpsert(t, o1, webService(t, "fed.example"))
		mustUpsert(t, o2, simple("x", "v1.web.fed.example", "192.0.2.77"))
		mustUpsert(t, o2, simple("below", "y.v1.web.fed.example", "192.0.2.78"))
		await("y.v1.web.fed.example", "NOERROR 192.0.2.78") // no conflict; what came before it is seen as well
		await("v1.web.fed.example", "NOERROR 192.0.2.1")
		await("v1.v1.web.fed.example", "NXDOMAIN")
		o1.Delete("web")
		await("v1.web.fed.example", "NOERROR 192.0.2.77")
		await("v1.v1.web.fed.example", "NOERROR 192.0.2.77")
		mustUpsert(t, o1, webService(t, "fed.example"))
		await("v1.web.fed.example", "NOERROR 192.0.2.1")
		o2.Delete("x")
		o2.Delete("below")
	})
	t.Run("6 names within each other", func(t *testing.T) {
		mustUpsert(t, o1, simple("inner", "a.b.fed.example", "10.0.0.1"))
		await("b.fed.example", "NOERROR")
		mustUpsert(t, o2, simple("outer", "b.fed.example", "10.0.0.2"))
		await("b.fed.example", "NOERROR 10.0.0.2")
		await("a.b.fed.example", "NOERROR 10.0.0.1")
		o1.Delete("inner")
		await("a.b.fed.example", "NXDOMAIN")
		await("b.fed.example", "NOERROR 10.0.0.2")
	})
	t.Run("6 zones within each other", func(t *testing.T) {
		mustUpsert(t, o2, simple("deep", "deep.sub.fed.example", "10.0.0.2"))
		await("deep.sub.fed.example", "NOERROR 10.0.0.2")
	})
	t.Run("6 names that an owner cannot have", func(t *testing.T) {
		for i, name := range []string{
			"dns.fed.example", "ns.dns.fed.example", "x.ns.dns.fed.example", "web.other.example", "10-0-0-9.addr.seen.fed.example",
		} {
			mustUpsert(t, o1, simple(fmt.Sprint("bad", i), name, "10.0.0.66"))
		}
		mustUpsert(t, o1, simple("last", "last.fed.example", "10.0.0.1"))
		await("last.fed.example", "NOERROR 10.0.0.1")
		await("dns.fed.example", "NOERROR")
		await("ns.dns.fed.example", "NOERROR")
		await("x.ns.dns.fed.example", "NXDOMAIN")
		await("10-0-0-9.addr.seen.fed.example", "NOERROR 10.0.0.9")
	})
	t.Run("6 derived names that an owner cannot have", func(t *testing.T) {
		mustUpsert(t, o1, fixtureService(t, "apex", "fed.example", []string{"10.0.0.66:443"}, []string{"dns HTTP", "ns.dns HTTP", "ok HTTP"}))
		await("ok.fed.example", "NOERROR 10.0.0.66")
		await("dns.fed.example", "NOERROR")
		await("ns.dns.fed.example", "NOERROR")
	})
	t.Run("6 a service that moves", func(t *testing.T) {
		mustUpsert(t, o1, simple("moving", "before.fed.example", "10.0.0.1"))
		await("before.fed.example", "NOERROR 10.0.0.1")
		mustUpsert(t, o1, simple("moving", "after.fed.example", "10.0.0.1"))
		await("after.fed.example", "NOERROR 10.0.0.1")
		await("before.fed.example", "NXDOMAIN")
	})
}

// TestUnsynced has the rows about owners that are not synced yet, for one that
// cannot be reached and for one that is known beside it.
func TestUnsynced(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	here := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", []string{"192.0.2.1:443", "other.fed.example:443"}, []string{"v1 HTTPS"}))
	n := startNameserver(t, map[string]string{"nope.through.example.": "60 A 198.51.100.1"})
	away := freeAddress(t)
	ready := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "none.example", "", away)+
		federationBlock(p, "through.example", "forward . "+n.address, away+" fallthrough")+
		federationBlock(p, "fed.example", "ready "+ready, here.address, away))
	d.awaitAnswer(t, "web.fed.example", dns.TypeTXT, `NOERROR "txtvers=1" "id=v1" "protocol=HTTPS" "txtvers=1" "name=web"`)
	checkTable(t, d.address, "none.example.", []tableRow{
		{"7.10 nothing known", "nope", "A AAAA SRV TXT ANY NS SOA HTTPS", notReady},
		{"7.10 nothing known", "", "SOA NS A ANY", notReady},
		{"7.10 what needs no owner", "dns", "A", noData},
		{"coredns#2116 and dns#186", "web", "A", notReady},
	})
	checkTable(t, d.address, "through.example.", []tableRow{
		{"8.8 unsynced comes before fallthrough", "nope", "A", notReady},
	})
	checkTable(t, d.address, "fed.example.", []tableRow{
		{"7.10 known name", "v1.web", "MX", noData},
		{"7.10 known name whose host may come", "web", "A", found("5 A 192.0.2.1")},
		{"7.10 known name whose host may come", "web", "AAAA", noHost},
		{"7.10 unknown name", "nope", "A SOA TXT", notReady},
		{"5.5 an empty non-terminal that may be a service's", "addr.web", "A TXT ANY", notReady},
		{"5.5 one that cannot", "_tcp.web", "A TXT ANY", noData},
		{"7.10 the apex", "", "SOA", notReady},
	})
	t.Run("8.9 not ready without an owner", func(t *testing.T) {
		if status, body, err := get("http://" + ready + "/ready"); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("ready without an owner: %d %s %v", status, body, err)
		}
	})
	// The owner starts: everything is known at once.
	startOwner(t, p.owner, away, fixtureService(t, "other", "other.fed.example", []string{"192.0.2.2:443"}, []string{"v1 HTTPS"}))
	d.awaitAnswer(t, "nope.through.example", dns.TypeA, "NOERROR 198.51.100.1")
	d.awaitAnswer(t, "none.example", dns.TypeA, "NOERROR")
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2")
	checkTable(t, d.address, "fed.example.", []tableRow{{"7.10 all known", "nope", "A", nxDomain}})
	t.Run("8.9 ready with all owners", func(t *testing.T) {
		awaitStatus(t, "http://"+ready+"/ready", http.StatusOK)
	})
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

// TestExpiry has the rows about the end of a retention and about the serial.
func TestExpiry(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	web := func(address string) *federation.Service {
		return fixtureService(t, "web", "web.fed.example", []string{address + ":443"}, []string{"v1 HTTPS"})
	}
	o := startOwner(t, p.owner, "", web("192.0.2.1"))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address+" retention 10s"))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	serial := func() uint32 {
		t.Helper()
		return serialOf(t, d.address, "fed.example")
	}
	first := serial()
	if age := time.Since(time.Unix(int64(first), 0)); age < -time.Minute || age > time.Minute {
		t.Errorf("5.2: serial is %v old", age)
	}
	t.Run("5.2 and coredns#1516, #8338: nothing changed", func(t *testing.T) {
		for range 3 {
			mustUpsert(t, o, web("192.0.2.1"))
		}
		mustUpsert(t, o, fixtureService(t, "marker", "marker.fed.example", []string{"192.0.2.9:443"}, []string{"v1 TCP"}))
		d.awaitAnswer(t, "marker.fed.example", dns.TypeA, "NOERROR 192.0.2.9")
		o.Delete("marker")
		d.awaitAnswer(t, "marker.fed.example", dns.TypeA, "NXDOMAIN")
		settled := settledSerial(t, d.address, "fed.example")
		for range 20 {
			mustUpsert(t, o, web("192.0.2.1"))
			mustQuery(t, d.address, "nope.fed.example", dns.TypeA)
		}
		if got := serial(); got != settled {
			t.Errorf("serial moved from %d to %d", settled, got)
		}
	})
	t.Run("5.2: one RRset changed", func(t *testing.T) {
		before := serial()
		mustUpsert(t, o, web("192.0.2.2"))
		d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
		eventually(t, patience, func() string {
			if got := serial(); int32(got-before) <= 0 {
				return fmt.Sprintf("serial is %d, was %d", got, before)
			}
			return ""
		})
	})
	before := serial()
	lost := time.Now()
	o.stop()
	t.Run("7.6, 7.7 and 7.9: stale, then gone", func(t *testing.T) {
		var ttls []uint32
		eventually(t, patience, func() string {
			m := mustQuery(t, d.address, "web.fed.example", dns.TypeA, withEDNS)
			if plain := mustQuery(t, d.address, "web.fed.example", dns.TypeA); plain.IsEdns0() != nil {
				t.Error("OPT for a client that sent none")
			}
			switch {
			case m.Rcode == dns.RcodeNameError: // not SERVFAIL: resolvers would go on with what they have cached
				return ""
			case m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1:
				t.Fatalf("reply is %v", m)
			case extendedError(m) == int(dns.ExtendedErrorCodeStaleAnswer):
				ttls = append(ttls, m.Answer[0].Header().Ttl)
			}
			return "web is not gone"
		})
		if age := time.Since(lost); age < 9*time.Second {
			t.Errorf("gone after %v, with a retention of 10s", age)
		}
		if ttls = slices.Compact(ttls); len(ttls) == 0 || slices.Min(ttls) < 1 || slices.Max(ttls) > 10 || !slices.IsSortedFunc(ttls, func(a, b uint32) int { return gocmp.Compare(b, a) }) {
			t.Errorf("TTLs are %v with a retention of 10s", ttls)
		}
	})
	t.Run("5.2: from live to stale and gone", func(t *testing.T) {
		if got := serial(); int32(got-before) <= 0 {
			t.Errorf("serial is %d, was %d", got, before)
		}
	})
}

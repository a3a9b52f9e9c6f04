package federationplugin

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// fixed is a block whose zone never changes.
type fixed struct {
	zone  *zone.Zone
	ready bool
}

func (b fixed) Ask()                           {}
func (b fixed) Work() func(time.Duration) bool { return func(time.Duration) bool { return false } }
func (b fixed) Zone() *zone.Zone               { return b.zone }
func (b fixed) Ready() bool                    { return b.ready }

// newBlock returns the shortest federation block, for zones that default to
// fed.example.
func newBlock(t testing.TB, names ...string) corefile.Block {
	t.Helper()
	b := corefile.Block{
		Owner: agent.OwnerConfig{Name: "owner.example:8008"},
		Zone:  zone.Owner{TTL: 30, NegativeTTL: 5},
	}
	if len(names) == 0 {
		names = []string{"fed.example."}
	}
	for _, name := range names {
		z := must.Get(federation.ParseOrigin(name))(t)
		b.Zone.Origins = append(b.Zone.Origins, z)
	}
	return b
}

// newService returns a service with one instance, v1, and endpoints of the
// form address:port.
func newService(t testing.TB, fqdn string, endpoints ...string) *federation.Service {
	t.Helper()
	name := must.Get(federation.ParseFQDN(fqdn))(t)
	s := &federation.Service{Name: fqdn, FQDN: name, Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}}}
	for _, e := range endpoints {
		host, port, err := net.SplitHostPort(e)
		must.Do(t, err)
		address := must.Get(federation.ParseAddress(host))(t)
		number := must.Get(strconv.ParseUint(port, 10, 16))(t)
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: uint16(number)})
	}
	return s
}

// chain is a server block without sockets: the handler, and the next plugin, which
// stands for the rest of DNS.
type chain struct {
	*Federation
	server  *dnsserver.Server
	builder *zonetest.Builder
	glue    int // the most records that glueOf has seen
}

// newChain returns a chain in which every owner is synced and the first one has
// the services.
func newChain(t testing.TB, next plugin.Handler, blocks []corefile.Block, services ...*federation.Service) *chain {
	t.Helper()
	c := &chain{Federation: newFederation(blocks)}
	attached := c.blockConfig(nil, &dnsserver.Config{ListenHosts: []string{"192.0.2.53", "2001:db8::53"}})
	c.builder = zonetest.NewBuilder(attached.Zone, nil)
	for i := range blocks {
		c.builder.SetStatus(i, zone.Status{Known: true})
	}
	for _, s := range services {
		c.builder.Put(0, s, 0)
	}
	c.publish()
	config := &dnsserver.Config{Zone: ".", Transport: "dns", ListenHosts: []string{""}, Port: "53"}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		c.Next = next
		return c.Federation
	})
	if next != nil {
		config.AddPlugin(func(plugin.Handler) plugin.Handler { return next })
	}
	c.server = must.Get(dnsserver.NewServer("dns://:53", []*dnsserver.Config{config}))(t)
	return c
}

func (c *chain) publish() { c.setBlock(fixed{c.builder.Publish(time.Now()), true}) }

// ask sends a query through the server and returns the reply, or nil.
func (c *chain) ask(w dns.ResponseWriter, query *dns.Msg) *dns.Msg {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, c.server)
	recorder := dnstest.NewRecorder(w)
	c.server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), recorder, query)
	return recorder.Msg
}

// lookup asks over UDP with EDNS and returns the reply in short: the code, the
// extended error, and the answers without their names.
func (c *chain) lookup(name string, qtype uint16) string {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype).SetEdns0(4096, false)
	return short(c.ask(&test.ResponseWriter{}, query))
}

func short(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	words := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Extra {
		if opt, ok := rr.(*dns.OPT); ok {
			for _, o := range opt.Option {
				if e, ok := o.(*dns.EDNS0_EDE); ok {
					words = append(words, "EDE "+strconv.Itoa(int(e.InfoCode)))
				}
			}
		}
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		words = append(words, fmt.Sprintf("%d %s", h.Ttl, strings.TrimPrefix(rr.String(), h.String())))
	}
	for _, rr := range m.Ns {
		words = append(words, dns.TypeToString[rr.Header().Rrtype])
	}
	return strings.Join(words, ", ")
}

// manyEndpoints is a service with n endpoints: some share an address, and some
// are hosts.
func manyEndpoints(t testing.TB, fqdn string, n int) *federation.Service {
	t.Helper()
	var endpoints []string
	for i := range n {
		switch i % 4 {
		case 0, 1:
			endpoints = append(endpoints, fmt.Sprintf("192.0.2.%d:%d", i-i%4, 8000+i))
		case 2:
			endpoints = append(endpoints, fmt.Sprintf("[2001:db8::%x]:443", i))
		case 3:
			endpoints = append(endpoints, fmt.Sprintf("gw%d.example.net:443", i))
		}
	}
	return newService(t, fqdn, endpoints...)
}

// Glue never costs an answer: it fills what is left of the client's buffer with
// whole RRsets, for buffers of every size.
func TestGlueFits(t *testing.T) {
	cookie := &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1223344556"}
	for _, n := range []int{1, 2, 7, 20, 60} {
		for _, stale := range []bool{false, true} {
			c := newChain(t, &elsewhere{}, []corefile.Block{newBlock(t)}, manyEndpoints(t, "web.fed.example", n))
			if stale {
				c.builder.SetStatus(0, zone.Status{Known: true, Live: 1})
				c.publish()
			}
			all := c.glueOf(t, 0xffff, nil) // everything, in the order in which records are dropped, last first
			if want := n/4*2 + min(n%4, 1) + max(n%4-2, 0); len(all) != want {
				t.Fatalf("%d endpoints have %d records of glue, want %d", n, len(all), want)
			}
			for size := 512; size < 4096; size += 1 + size/97 {
				for _, options := range [][]dns.EDNS0{nil, {cookie}} {
					glue := c.glueOf(t, uint16(size), options)
					if !slices.Equal(all[:len(glue)], glue) {
						t.Fatalf("size %d: glue is %q, which is no prefix of %q", size, glue, all)
					}
				}
			}
		}
	}
}

// glueOf asks for the SRV records and returns the glue as text. It checks that
// the reply fits, and that there is no room for more.
func (c *chain) glueOf(t *testing.T, size uint16, options []dns.EDNS0) []string {
	t.Helper()
	query := new(dns.Msg)
	query.SetQuestion("web.fed.example.", dns.TypeSRV).SetEdns0(size, false)
	query.IsEdns0().Option = options
	reply := c.ask(&test.ResponseWriter{}, query)
	wire := must.Get(reply.Pack())(t)
	if len(wire) > int(size) {
		t.Fatalf("reply has %d octets, client takes %d", len(wire), size)
	}
	var glue []string
	for _, rr := range reply.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			glue = append(glue, rr.String())
		}
	}
	if reply.Truncated && len(glue) > 0 {
		t.Fatalf("size %d: truncated with %d records of glue", size, len(glue))
	}
	room := int(size) - len(wire)
	const record = 2 + 10 + 16 // of the type AAAA, its name compressed
	if !reply.Truncated && room >= record+dns.Len(query.IsEdns0()) && len(glue) < c.glue {
		t.Fatalf("size %d: room for %d octets, and only %d of %d records of glue", size, room, len(glue), c.glue)
	}
	c.glue = max(c.glue, len(glue))
	return glue
}

// No glue stands in the way of the errors that come with an answer, whatever their text: it must not set TC
// (RFC 2181 section 9).
func TestGlueLeavesRoomForErrors(t *testing.T) {
	blocks := []corefile.Block{newBlock(t), newBlock(t)}
	blocks[1].Owner.Name = "other"
	for _, stale := range []bool{false, true} {
		endpoints := append(addressList(9), "meta.fed.example:1")
		c := newChain(t, &elsewhere{}, blocks, newService(t, "web.fed.example", endpoints...))
		c.builder.Put(1, newService(t, "meta.fed.example", "169.254.169.254:1"), 0)
		if stale {
			c.builder.SetStatus(0, zone.Status{Known: true, Live: 1})
		}
		c.publish()
		for size := 570; size < 1232; size++ {
			query := new(dns.Msg)
			query.SetQuestion("web.fed.example.", dns.TypeSRV).SetEdns0(uint16(size), false)
			m := c.ask(&test.ResponseWriter{}, query)
			if m.Truncated || len(m.Answer) != 9 || !hasError(m, dns.ExtendedErrorCodeBlocked) || hasError(m, dns.ExtendedErrorCodeStaleAnswer) != stale {
				t.Fatalf("size %d: truncated is %v, with %d records and %d more", size, m.Truncated, len(m.Answer), len(m.Extra))
			}
			if size == 1231 && len(m.Extra) != 10 {
				t.Errorf("%d records more", len(m.Extra))
			}
		}
	}
}

// A host in the zone may have many addresses. The glue has all of them or none: a part
// of an RRset would be taken for the whole (RFC 2181 section 9).
func TestGlueHasWholeRRsets(t *testing.T) {
	c := newChain(t, nil, []corefile.Block{newBlock(t)},
		manyEndpoints(t, "few.fed.example", 1), newService(t, "many.fed.example", addressList(40)...),
		newService(t, "web.fed.example", "few.fed.example:1", "many.fed.example:2", "web2.fed.example:3"), newService(t, "web2.fed.example", "192.0.2.9:1"))
	for size := 512; size < 2048; size++ {
		glue := len(c.glueOf(t, uint16(size), nil))
		if glue != 1 && glue != 41 && glue != 42 {
			t.Fatalf("size %d: %d records of glue", size, glue)
		}
		c.glue = 0 // there is room for a part of the set
	}
}

func addressList(n int) (endpoints []string) {
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("192.0.2.%d:80", i+1))
	}
	return endpoints
}

func TestGlueOmitted(t *testing.T) {
	c := newChain(t, &elsewhere{}, []corefile.Block{newBlock(t)}, manyEndpoints(t, "web.fed.example", 8))
	query := new(dns.Msg)
	query.SetQuestion("web.fed.example.", dns.TypeSRV)
	reply := c.ask(&test.ResponseWriter{}, query)
	if reply.Truncated || len(reply.Answer) != 8 || reply.IsEdns0() != nil {
		t.Errorf("8 endpoints in 512 octets: %v", reply)
	}
	query.SetEdns0(4096, true)
	if reply = c.ask(&test.ResponseWriter{}, query); len(reply.Extra) != 1 {
		t.Errorf("over UDP with DO, additional is %v, want only the OPT", reply.Extra)
	}
	if reply = c.ask(&test.ResponseWriter{TCP: true}, query); len(reply.Extra) != 5 {
		t.Errorf("over TCP with DO, additional is %v, want four addresses and the OPT", reply.Extra)
	}
}

// Of nested zones, the innermost decides whether its names fall through.
func TestFallthroughOfNestedZones(t *testing.T) {
	inner, outer := newBlock(t, "sub.fed.example."), newBlock(t)
	tests := []struct {
		inner, outer []string // zones that fall through
		want         map[string]bool
		bypass       []string
	}{
		{nil, nil, map[string]bool{"x.fed.example.": false, "x.sub.fed.example.": false}, []string{"fed.example.", "sub.fed.example."}},
		{nil, []string{"."}, map[string]bool{"x.fed.example.": true, "x.sub.fed.example.": false}, []string{"sub.fed.example."}},
		{[]string{"."}, nil, map[string]bool{"x.fed.example.": false, "x.sub.fed.example.": true}, []string{"fed.example."}},
		{nil, []string{"a.fed.example."}, map[string]bool{"x.fed.example.": false, "a.fed.example.": true, "x.a.fed.example.": true}, []string{"sub.fed.example."}},
	}
	for _, tt := range tests {
		inner.Fall.Zones, outer.Fall.Zones = tt.inner, tt.outer
		for _, blocks := range [][]corefile.Block{{outer, inner}, {inner, outer}} {
			f := newFederation(blocks)
			for name, want := range tt.want {
				if got := f.fallsThrough(name); got != want {
					t.Errorf("zones %v and %v: %s falls through: %t", tt.outer, tt.inner, name, got)
				}
			}
			if d := cmp.Diff(tt.bypass, slices.Sorted(slices.Values(f.CacheBypassZones()))); d != "" {
				t.Errorf("zones %v and %v: cache bypass (-want +got):\n%s", tt.outer, tt.inner, d)
			}
		}
	}
}

// A stale answer has an extended error, and counts for the owner that is lost even
// where the name is another owner's. One with an address that is live has none.
func TestStaleThroughHost(t *testing.T) {
	second := newBlock(t)
	second.Owner.Name = "lost.example:8008"
	c := newChain(t, nil, []corefile.Block{newBlock(t), second}, newService(t, "web.fed.example", "192.0.2.1:443", "old.fed.example:443"), newService(t, "fed.example", "web.fed.example:443"),
		newService(t, "behind.fed.example", "old.fed.example:443"))
	c.builder.Put(1, newService(t, "old.fed.example", "192.0.2.9:443"), 0)
	c.builder.SetStatus(1, zone.Status{Known: true, Live: 1})
	c.publish()
	registry := prometheus.NewRegistry()
	must.Do(t, registry.Register(staleAnswers))
	staleAnswers.Reset()
	for name, want := range map[string]string{
		"web.fed.example.":    "NOERROR, 30 192.0.2.1, 30 192.0.2.9",
		"fed.example.":        "NOERROR, 30 192.0.2.1, 30 192.0.2.9",
		"old.fed.example.":    "NOERROR, EDE 3, 30 192.0.2.9",
		"behind.fed.example.": "NOERROR, EDE 3, 30 192.0.2.9",
	} {
		if got := c.lookup(name, dns.TypeA); got != want {
			t.Errorf("answer for %s is %q, want %q", name, got, want)
		}
	}
	if got, want := c.lookup("web.fed.example.", dns.TypeTXT), "NOERROR, 30 "; !strings.HasPrefix(got, want) {
		t.Errorf("text of a live owner is %q", got)
	}
	families := must.Get(registry.Gather())(t)
	if len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Fatalf("counted %v", families)
	}
	counted := families[0].GetMetric()[0]
	if owner, n := counted.GetLabel()[0].GetValue(), counted.GetCounter().GetValue(); owner != "lost.example:8008" || n != 2 {
		t.Errorf("counted %v for %s, want 2 for the lost owner", n, owner)
	}
}

// Nothing is known of an owner that has never sent anything. When its grace is over,
// names that may be the next plugin's are handed on; others go on failing.
func TestSilentOwnerFallsThroughAfterGrace(t *testing.T) {
	next := plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeRefused, nil })
	through := newBlock(t, "through.example.")
	through.Fall.SetZonesFromArgs(nil)
	c := newChain(t, next, []corefile.Block{newBlock(t), through})
	for _, tt := range []struct {
		grace   time.Duration
		through string
	}{{time.Hour, "SERVFAIL, EDE 14"}, {-time.Second, "REFUSED"}} {
		for i := range 2 {
			c.builder.SetStatus(i, zone.Status{Grace: time.Now().Add(tt.grace)})
		}
		c.publish()
		for name, want := range map[string]string{
			"nope.fed.example.": "SERVFAIL, EDE 14", "nope.through.example.": tt.through, "through.example.": "SERVFAIL, EDE 14",
		} {
			if got := c.lookup(name, dns.TypeA); got != want {
				t.Errorf("grace %s: answer for %s is %q, want %q", tt.grace, name, got, want)
			}
		}
	}
}

// A host in our zones lends an owner no address that the owner may not publish
// itself: neither in the answer nor as glue.
func TestHostsInZoneLendNoRefusedAddress(t *testing.T) {
	trusted, other := newBlock(t), newBlock(t)
	trusted.Owner.Policy.AllowAddresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	other.Owner.Name = "other.example:8008"
	c := newChain(t, nil, []corefile.Block{trusted, other},
		newService(t, "lo.fed.example", "127.0.0.1:443", "192.0.2.1:443"), newService(t, "own.fed.example", "lo.fed.example:443"))
	c.builder.Put(1, newService(t, "web.fed.example", "lo.fed.example:443"), 0)
	c.builder.Put(1, newService(t, "far.fed.example", "web.fed.example:443", "127-0-0-1.addr.lo.fed.example:443"), 0)
	c.publish()
	for name, want := range map[string]string{
		"lo":  "NOERROR, 30 127.0.0.1, 30 192.0.2.1",
		"own": "NOERROR, 30 127.0.0.1, 30 192.0.2.1",
		"web": "NOERROR, EDE 15, 30 192.0.2.1",
		"far": "NOERROR, EDE 15, 30 192.0.2.1",
	} {
		if got := c.lookup(name+".fed.example.", dns.TypeA); got != want {
			t.Errorf("answer for %s is %q, want %q", name, got, want)
		}
	}
	for name, glue := range map[string]int{"own": 2, "web": 0, "far": 0} {
		query := new(dns.Msg)
		query.SetQuestion(name+".fed.example.", dns.TypeSRV)
		if m := c.ask(&test.ResponseWriter{}, query); len(m.Extra) != glue {
			t.Errorf("additional of %s is %v, want %d addresses", name, m.Extra, glue)
		}
	}
}

// The name server has the addresses that the server listens on. An owner that names
// it as the host of an endpoint publishes those that it could publish as endpoints, and no
// others.
func TestNameServerLendsNoRefusedAddress(t *testing.T) {
	listen := &dnsserver.Config{ListenHosts: []string{"100.100.100.200", "192.0.2.53", "fd00:ec2::254"}}
	target := "0 100 443 ns.dns.fed.example."
	for _, tt := range []struct {
		allowed      []string
		a, aaaa, srv string
		glue         int
	}{
		{nil, "NOERROR, EDE 15, 5 192.0.2.53", "NOERROR, EDE 15, SOA", "NOERROR, EDE 15, SOA", 0},
		{[]string{"100.100.100.200/32"}, "NOERROR, 5 100.100.100.200, 5 192.0.2.53", "NOERROR, EDE 15, SOA", "NOERROR, EDE 15, SOA", 0},
		{[]string{"100.100.100.200/32", "fd00:ec2::254/128"}, "NOERROR, 5 100.100.100.200, 5 192.0.2.53", "NOERROR, 5 fd00:ec2::254", "NOERROR, 30 " + target, 3},
	} {
		block := newBlock(t)
		for _, prefix := range tt.allowed {
			block.Owner.Policy.AllowAddresses = append(block.Owner.Policy.AllowAddresses, netip.MustParsePrefix(prefix))
		}
		c := newChain(t, nil, []corefile.Block{block})
		c.builder = zonetest.NewBuilder(c.blockConfig(nil, listen).Zone, nil)
		c.builder.SetStatus(0, zone.Status{Known: true})
		c.builder.Put(0, newService(t, "web.fed.example", "ns.dns.fed.example:443"), 0)
		c.builder.Put(0, newService(t, "far.fed.example", "web.fed.example:443"), 0)
		c.publish()
		for _, name := range []string{"web.fed.example.", "far.fed.example."} {
			for qtype, want := range map[uint16]string{dns.TypeA: tt.a, dns.TypeAAAA: tt.aaaa} {
				if got := c.lookup(name, qtype); got != want {
					t.Errorf("with %v, answer for %s %s is %q, want %q", tt.allowed, name, dns.Type(qtype), got, want)
				}
			}
		}
		if got := c.lookup("web.fed.example.", dns.TypeSRV); got != tt.srv {
			t.Errorf("with %v, answer for SRV is %q, want %q", tt.allowed, got, tt.srv)
		}
		query := new(dns.Msg)
		query.SetQuestion("web.fed.example.", dns.TypeSRV)
		if m := c.ask(&test.ResponseWriter{}, query); len(m.Extra) != tt.glue {
			t.Errorf("with %v, additional is %v, want %d addresses", tt.allowed, m.Extra, tt.glue)
		}
		// The name server itself is no owner's.
		if got, want := c.lookup("ns.dns.fed.example.", dns.TypeA), "NOERROR, 5 100.100.100.200, 5 192.0.2.53"; got != want {
			t.Errorf("with %v, answer for the name server is %q, want %q", tt.allowed, got, want)
		}
	}
}

// A query for a stale name that fails is not counted as a stale answer.
func TestStaleFailure(t *testing.T) {
	e := &elsewhere{names: map[string]string{"gw.example.net.": "SERVFAIL", "meta.example.net.": "20 A 169.254.169.254"}}
	c := newChain(t, e, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "gw.example.net:443"), newService(t, "meta.fed.example", "meta.example.net:443"))
	c.builder.SetStatus(0, zone.Status{Known: true, Live: 1, Lost: time.Now()})
	c.publish()
	for name, want := range map[string]string{"web": "SERVFAIL, EDE 22", "meta": "NOERROR, EDE 15, EDE 19, SOA"} {
		if got := c.lookup(name+".fed.example.", dns.TypeA); got != want {
			t.Errorf("answer for %s is %q, want %q", name, got, want)
		}
	}
	query := new(dns.Msg)
	query.SetQuestion("meta.fed.example.", dns.TypeA).SetEdns0(1232, false)
	if reply := c.ask(&test.ResponseWriter{}, query); len(reply.Extra) != 1 {
		t.Errorf("additional is %v, want one OPT", reply.Extra)
	}
}

// Anything but a plain query for a name in our zones is handed on or refused.
func TestServeDNSOther(t *testing.T) {
	const handed = -1
	set := func(opcode int, qtype, qclass uint16, name string) *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		m.Opcode, m.Question[0].Qclass = opcode, qclass
		return m
	}
	for _, tt := range []struct {
		query      *dns.Msg
		last, next int // the code, without and with a next plugin
	}{
		{set(dns.OpcodeQuery, dns.TypeA, dns.ClassINET, "other.example."), dns.RcodeRefused, handed},
		{set(dns.OpcodeQuery, dns.TypeTXT, dns.ClassCHAOS, "web.fed.example."), dns.RcodeRefused, handed},
		{set(dns.OpcodeQuery, dns.TypeA, dns.ClassANY, "nope.fed.example."), dns.RcodeRefused, handed},
		{set(dns.OpcodeNotify, dns.TypeSOA, dns.ClassINET, "fed.example."), dns.RcodeNotImplemented, dns.RcodeNotImplemented},
		{set(dns.OpcodeNotify, dns.TypeSOA, dns.ClassINET, "other.example."), dns.RcodeRefused, handed},
		{set(dns.OpcodeUpdate, dns.TypeSOA, dns.ClassINET, "fed.example."), dns.RcodeNotImplemented, dns.RcodeNotImplemented},
		{set(dns.OpcodeStatus, dns.TypeA, dns.ClassINET, "nope.fed.example."), dns.RcodeNotImplemented, dns.RcodeNotImplemented},
		{set(dns.OpcodeQuery, dns.TypeAXFR, dns.ClassINET, "fed.example."), dns.RcodeRefused, dns.RcodeRefused},
		{set(dns.OpcodeQuery, dns.TypeIXFR, dns.ClassINET, "nope.fed.example."), dns.RcodeRefused, dns.RcodeRefused},
		{set(dns.OpcodeQuery, dns.TypeAXFR, dns.ClassINET, "other.example."), dns.RcodeRefused, handed},
	} {
		block := newBlock(t)
		block.Fall.SetZonesFromArgs(nil)
		c := newChain(t, nil, []corefile.Block{block}, newService(t, "web.fed.example", "192.0.2.1:443"))
		w := dnstest.NewRecorder(&test.ResponseWriter{})
		if code, err := c.ServeDNS(t.Context(), w, tt.query); code != tt.last || err != nil || w.Msg != nil {
			t.Errorf("%v: code is %d (%v), want %d", tt.query.Question, code, err, tt.last)
		}
		c.Next = plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return handed, nil })
		if code, err := c.ServeDNS(t.Context(), w, tt.query); code != tt.next || err != nil || w.Msg != nil {
			t.Errorf("%v: with a next plugin, code is %d (%v), want %d", tt.query.Question, code, err, tt.next)
		}
	}
}
